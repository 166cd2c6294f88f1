"""The cache of a process: a directory, a budget and the open versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from twisted.internet.interfaces import IReactorFromThreads

    from image_service.files.base_file import BaseFile
    from image_service.files.block_cache.source import CacheIdentity, GranuleDigests, RangeSource


class BlockCache:
    """One directory of cached versions, which several processes of a host may share.

    Args:
        directory: on a local disk; created if it is missing.
        max_bytes: of disk that all versions together may take.
        reactor: whose thread runs the senders.
    """

    def __init__(self, directory: Path, max_bytes: int, reactor: IReactorFromThreads) -> None:
        raise NotImplementedError

    def open(
        self, identity: CacheIdentity, source: RangeSource, digests: GranuleDigests | None = None
    ) -> BaseFile:
        """Return the file of a version, whose `residency` fetches what is absent. Blocks for the disk.

        The caller closes the descriptor (`OpenFiles`). Opened again, the same version has the same blocks.

        Raises:
            OSError: the directory cannot be used.
        """
        raise NotImplementedError

    def local_bytes(self, identity: CacheIdentity) -> int:
        """Return how many bytes of an open version are present."""
        raise NotImplementedError

    def pin(self, identity: CacheIdentity, offset: int, length: int) -> None:
        """Fetch bytes of an open version and never evict them. Blocks.

        Raises:
            OSError: they cannot be fetched, or more than half of the budget would be pinned.
        """
        raise NotImplementedError

    def fetch(self, identity: CacheIdentity, offset: int, length: int) -> None:
        """Fetch bytes of an open version, which may be evicted again. Blocks.

        Raises:
            OSError: they cannot be fetched.
        """
        raise NotImplementedError

    def remove_others(self, named: Collection[CacheIdentity]) -> None:
        """Remove the directories of versions that are neither named nor open in any process. Blocks."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to serve; called in the reactor's thread."""
        raise NotImplementedError

    def stop(self) -> None:
        """End threads and close what is open, except the descriptors of files."""
        raise NotImplementedError
