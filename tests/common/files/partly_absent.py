"""A base file whose bytes are absent until prefetched or held: a reader that does neither sees zeros."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from image_service.core.base_file import BaseFile

BLOCK_BYTES = 64 * 1024


class PartlyAbsent:
    """The residency of a sparse file. Held blocks become holes again when they are released.

    Args:
        path: of the sparse file, which is made here.
        content: what the file holds elsewhere.
        block_bytes: fetched at a time.
    """

    def __init__(self, path: Path, content: bytes, block_bytes: int = BLOCK_BYTES) -> None:
        self.fetched: list[int] = []
        """Numbers of the blocks, in the order of fetching."""
        self._content = content
        self._block_bytes = block_bytes
        self._resident: set[int] = set()
        path.touch()
        os.truncate(path, len(content))
        self.file = LocalFile(os.open(path, os.O_RDONLY), len(content), str(path), self)

    def validator(self, file: BaseFile) -> str:
        """A digest of the content."""
        del file
        return hashlib.sha256(self._content).hexdigest()

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Count from block to block."""
        del file
        stop = offset
        while stop // self._block_bytes in self._resident:
            stop = (stop // self._block_bytes + 1) * self._block_bytes
        return min(stop - offset, length)

    def is_present(self, file: BaseFile, offset: int, length: int) -> bool:
        """Compare with what a sender could send."""
        return PartlyAbsent.resident_bytes(self, file, offset, length) == length

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Fetch at once; prefetched blocks stay."""
        del file
        self.fetch(offset, length)

    @contextmanager
    def hold(self, file: BaseFile, offset: int, length: int) -> Iterator[None]:
        """Fetch, and evict afterwards what was absent before."""
        del file
        fetched = self.fetch(offset, length)
        yield
        for block in fetched:
            self._write(block, bytes(len(self._content[self._span(block)])))
            self._resident.discard(block)

    def try_hold(self, file: BaseFile, offset: int, length: int) -> Callable[[], None] | None:
        """Nothing is kept."""
        del file, offset, length
        return None

    def fetch(self, offset: int, length: int) -> list[int]:
        """Make bytes resident; return the blocks that were absent."""
        assert length > 0
        blocks = range(offset // self._block_bytes, (offset + length - 1) // self._block_bytes + 1)
        absent = [block for block in blocks if block not in self._resident]
        for block in absent:
            self._write(block, self._content[self._span(block)])
        self._resident.update(absent)
        self.fetched += absent
        return absent

    def _span(self, block: int) -> slice:
        return slice(block * self._block_bytes, (block + 1) * self._block_bytes)

    def _write(self, block: int, data: bytes) -> None:
        with open(self.file.path, "r+b") as file:  # noqa: PTH123 - BaseFile has its path as text
            file.seek(block * self._block_bytes)
            file.write(data)
