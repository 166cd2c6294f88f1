"""Disk images to customize: fetched, verified and unpacked once, in a directory of their own.

The unpacked file lies beside the fetched one: ``….img.unpacked``, with holes for zeros. Its sidecar has the
digest of the fetched file.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interrupted
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.common.files.atomic import atomic_write
from image_service.common.files.local_file import LocalFile
from image_service.common.files.open_files import OpenFiles
from image_service.core.errors import BaseImageError, Unavailable, describe_os_error
from image_service.core.formats.decompress import DecompressedStream, is_compressed
from image_service.server.catalog.lifecycle.opening import load_sidecar, verify_file
from image_service.server.catalog.storage.digest import Sidecar

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.base_file import BaseFile
    from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
    from image_service.server.catalog.lifecycle.signature import KeyRing
    from image_service.settings.os_images import OsImage

MAX_UNPACKED_BYTES = 64 * 1024**3
"""Some times the size of CoreOS; the zeros of a larger one would keep a processor busy for minutes."""
RETRY_AFTER_SECONDS = 5

_PACKED_DIGEST = "packed_sha256"


@attrs.frozen(eq=False)
class BaseDisk:
    """A disk image that is open and verified.

    Args:
        file: unpacked.
        sha256: of it, lower-case hex.
        packed_sha256: of the file as it is published.
    """

    file: BaseFile
    sha256: str
    packed_sha256: str


class DiskImages:
    """Disk images, by their entries.

    Args:
        in_thread: fetches and unpacks, which takes minutes.
        fetcher: of the directory, which is open.
        interruption: ends fetching and unpacking.
    """

    _log = Logger()

    def __init__(self, in_thread: InThread, fetcher: ImageFetcher, interruption: Interruption) -> None:
        self._in_thread = in_thread
        self._fetcher = fetcher
        self._interruption = interruption
        self._fetching: SingleFlight[OsImage, BaseDisk] = SingleFlight()
        self._opened: dict[str, tuple[OsImage, BaseDisk]] = {}
        self._files = OpenFiles()

    async def get(self, entry: OsImage) -> BaseDisk:
        """Return a disk image, after fetching it if it is absent.

        Its file stays open while anything refers to it, until `close`.

        Raises:
            Unavailable: not now; has the reason, and the time of a retry if that is known.
            BaseImageError: it is not what its entry says, or damaged.
        """
        opened = self._find(entry)
        return opened or await self._fetching.join(entry, lambda: self._fetch(entry))

    def get_ready(self, entry: OsImage) -> BaseDisk:
        """Return a disk image; if it is absent, start to fetch it, and raise Unavailable."""
        opened = self._find(entry)
        if opened is None:
            fetching = self._fetching.join(entry, lambda: self._fetch(entry))
            fetching.addErrback(lambda failure: failure.trap(BaseImageError, Unavailable))
            raise Unavailable(f"{entry.file_name} is being fetched", retry_after_seconds=RETRY_AFTER_SECONDS)
        return opened

    def forget_others(self, names: Container[str]) -> None:
        """Close the files of disk images with other names, once nothing reads them."""
        for name in [name for name in self._opened if name not in names]:
            del self._opened[name]

    def close(self) -> None:
        """Close every file."""
        self._opened.clear()
        self._files.close()

    def _find(self, entry: OsImage) -> BaseDisk | None:
        known, opened = self._opened.get(entry.file_name, (None, None))
        return opened if known == entry else None

    async def _fetch(self, entry: OsImage) -> BaseDisk:
        opened = await self._in_thread(partial(self._open, entry))
        self._files.add_file(opened.file)
        self._opened[entry.file_name] = entry, opened
        return opened

    def _open(self, entry: OsImage) -> BaseDisk:
        try:
            self._fetcher.fetch_if_absent(entry, self._interruption)
            packed = self._fetcher.open_by(_open_packed, entry, self._interruption)
            if not is_compressed(packed.file.read_at):
                return packed
            with self._fetcher.data_dir.lock(f"unpacked {entry.file_name}", self._interruption):
                return self._open_unpacked(entry, packed)
        except OSError as error:
            raise Unavailable(f"{entry.file_name} cannot be opened: {describe_os_error(error)}") from None
        except Interrupted:
            raise Unavailable("the service is stopping", retry_after_seconds=RETRY_AFTER_SECONDS) from None

    def _open_unpacked(self, entry: OsImage, packed: BaseDisk) -> BaseDisk:
        """Open the unpacked file, after unpacking again if it is absent or of another fetched file."""
        data_dir = self._fetcher.data_dir
        path = data_dir.path / f"{entry.file_name}.unpacked"
        sidecar = path.with_name(f"{path.name}.json")
        data_dir.claim_files(entry.file_name, path.name, sidecar.name)
        try:
            if not _is_of(path, sidecar, packed.sha256):
                self._log.info("unpacking {image}", image=entry.file_name)
                self._unpack(packed.file, path, sidecar, packed.sha256)
        finally:
            packed.file.close()
        file = LocalFile.open(path)
        digest = Sidecar(sidecar, file).get_digest("sha256")
        if digest is None:
            file.close()
            raise Unavailable(f"{path.name} changed while it was opened")
        return BaseDisk(file, digest, packed.sha256)

    def _unpack(self, packed: BaseFile, path: Path, sidecar: Path, packed_sha256: str) -> None:
        digest = hashlib.sha256()
        with self._fetcher.data_dir.quota.reserve(path.name) as check_space, atomic_write(path) as target:
            for block in DecompressedStream(packed.read_at, 0, MAX_UNPACKED_BYTES, path.stem):
                self._interruption.raise_if_interrupted()
                digest.update(block)
                if block.strip(b"\0"):
                    target.write(block)
                else:
                    target.seek(len(block), os.SEEK_CUR)
                check_space(target.tell(), None)
            target.truncate()
        file = LocalFile.open(path)
        try:
            stored = Sidecar(sidecar, file)
            stored.save_digest("sha256", digest.hexdigest())
            stored.save_digest(_PACKED_DIGEST, packed_sha256)
        finally:
            file.close()


def _open_packed(
    entry: OsImage, path: Path, sidecar: Path, interruption: Interruption, keys: KeyRing | None
) -> BaseDisk:
    file = LocalFile.open(path)
    try:
        digest = verify_file(entry, file, load_sidecar(sidecar, file), interruption, keys)
    except BaseException:
        file.close()
        raise
    return BaseDisk(file, digest, digest)


def _is_of(path: Path, sidecar: Path, packed_sha256: str) -> bool:
    """Return True if a file was unpacked from the one with that digest."""
    if not path.is_file():
        return False
    file = LocalFile.open(path)
    try:
        return Sidecar(sidecar, file).get_digest(_PACKED_DIGEST) == packed_sha256
    finally:
        file.close()
