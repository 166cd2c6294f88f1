"""Fetches base images into ``DATA_DIR`` and opens them. Runs in threads.

Each step locks its image, against other processes on the directory too: the second one waits, and finds what
the first has fetched and hashed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interruption
from image_service.common.http.origins import public_url
from image_service.common.programs.interruptible import NEEDED
from image_service.common.registry.references import is_registry_url
from image_service.core.errors import BaseImageError, Unavailable
from image_service.server.catalog.download.downloader import ReportProgress
from image_service.server.catalog.lifecycle.opening import open_base_image, signature_path
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES, KeyRing
from image_service.server.catalog.storage.base_records import BaseRecord, BaseRecords, superseded_name
from image_service.server.catalog.storage.data_dir import DataDir  # noqa: TC001 - attrs resolves annotations at run time
from image_service.server.catalog.storage.digest import move_sidecar, recheck_sha256, stored_sha256

if TYPE_CHECKING:
    from collections.abc import Collection

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.storage.base_records import Pin, RecordKey
    from image_service.settings.os_images import OsImage

T = TypeVar("T", bound="_Verified")
Download: TypeAlias = Callable[[str, Path, Interruption, ReportProgress, str], None]


class _Verified(Protocol):
    @property
    def sha256(self) -> str:
        """Of its file, lower-case hex."""


@attrs.frozen
class ImageFetcher:
    """Fetches and opens base images.

    Args:
        data_dir: stores downloaded images.
        download: completes a partial file, like `download_file`.
        keys: an image must be signed by one of them; None: signatures are not verified.
        records: of the images that are opened; None: nothing is recorded, and no superseded image is kept.
    """

    _log = Logger()

    data_dir: DataDir
    download: Download
    keys: KeyRing | None = None
    records: BaseRecords | None = None

    def is_complete(self, entry: OsImage) -> bool:
        """Return True if nothing of an image is to be fetched, as for a local file that is used in place."""
        path = self._path_of(entry)
        complete = path.exists() and (self.keys is None or signature_path(path).exists())
        return entry.local_path is not None or complete

    def fetch_if_absent(
        self, entry: OsImage, interruption: Interruption, report_progress: ReportProgress = lambda *_: None
    ) -> None:
        """Fetch the absent bytes of an image and its signature.

        Raises:
            Unavailable: not now; the error says why, and when to retry if the origin says so.
            OSError: the directory cannot be written.
            Interrupted: the service stops.
        """
        path = self._path_of(entry)
        if entry.local_path:
            return
        with self.data_dir.lock(entry.file_name, interruption):
            if not path.exists():
                partial = self.data_dir.partial_path(entry.file_name)
                with self.data_dir.quota.reserve(entry.file_name) as check_space:

                    def report(done: int, total: int | None) -> None:
                        check_space(done, total)
                        report_progress(done, total)

                    self.download(entry.url, partial, interruption, report, entry.cpu_architecture)
                self.data_dir.publish(entry.file_name)
            if self.keys and not signature_path(path).exists():
                self._fetch_signature(entry, interruption)

    def open(self, entry: OsImage, interruption: Interruption) -> BaseImage:
        """Verify a live ISO and open it; see `open_by`."""
        base = self.open_by(open_base_image, entry, interruption)
        self.record(entry, base.sha256)
        return base

    def record(self, entry: OsImage, sha256: str, pin: Pin | None = None) -> None:
        """Record an image that was opened; if that cannot be written, the next start does not find it."""
        if self.records is not None:
            with suppress(OSError):
                self.records.add(BaseRecord.of(entry, sha256, pin))

    def open_superseded(self, record: BaseRecord, interruption: Interruption) -> BaseImage:
        """Open an image that was opened before, wherever its file is now; raises like `open`."""
        entry, name = record.entry, superseded_name(record.key)
        # Not the lock of its former name, which the download of the image in its place holds for long.
        with self.data_dir.lock(name, interruption):
            interruption.raise_if_interrupted()
            is_renamed = (self.data_dir.path / name).exists()
            image = name if is_renamed else entry.file_name
            path = self.data_dir.path / name if is_renamed else self._path_of(entry)
            sidecar = self.data_dir.path / f"{image}.json"
            self.data_dir.claim_files(image, sidecar.name)
            entry = attrs.evolve(entry, sha256=record.sha256)
            return open_base_image(entry, path, sidecar, interruption, self.keys)

    def remove_superseded(self, keys: Collection[RecordKey]) -> None:
        """Remove records, and the files that only superseded images have; raises Unavailable, OSError."""
        if self.records is not None:
            self.records.remove(keys)
        for key in keys:
            self.data_dir.remove_image(superseded_name(key))

    def open_by(
        self,
        opener: Callable[[OsImage, Path, Path, Interruption, KeyRing | None], T],
        entry: OsImage,
        interruption: Interruption,
    ) -> T:
        """Verify an image and open it.

        Args:
            opener: such as `open_base_image`.

        Returns:
            the image; the caller closes its file.

        Raises:
            BaseImageError: the image is invalid. If it was downloaded it is set aside, and can be fetched
                again.
            Unavailable: it changed meanwhile.
            OSError: it is absent, or cannot be read.
            Interrupted: the service stops.
        """
        image, sidecar = entry.file_name, self.data_dir.path / f"{entry.file_name}.json"
        with self.data_dir.lock(image, interruption):
            interruption.raise_if_interrupted()
            self.data_dir.claim_files(image, sidecar.name)
            downloaded = self.data_dir.recorded_sha256(image)
            if (
                downloaded
                and entry.sha256 not in {None, downloaded}
                and self._rename_superseded(entry, downloaded, interruption)
            ):
                raise BaseImageError(f"its SHA-256 is {downloaded}; it must be {entry.sha256}")
            known = downloaded or stored_sha256(sidecar)
            try:
                base = opener(entry, self._path_of(entry), sidecar, interruption, self.keys)
            except BaseImageError as error:
                self._set_aside(entry, error.detail)
                raise
            if entry.sha256 is None and known not in {None, base.sha256}:
                self._log.warn(
                    "base image {image} was changed or replaced: its SHA-256 was {known} and is {found}; "
                    "`image-service images remove --force {version}` has it fetched again",
                    image=image,
                    known=known,
                    found=base.sha256,
                    version=entry.version,
                )
            self.data_dir.record_sha256(image, entry.sha256 or known or base.sha256)
            return base

    def recheck(self, entry: OsImage, base: BaseImage, interruption: Interruption) -> None:
        """Compare the SHA-256 of an open image again, in minutes, mostly idle; raises like `open`."""
        try:
            recheck_sha256(base.file, base.sha256, interruption)
        except BaseImageError as error:
            if self.records is not None:
                self.records.remove([(entry.file_name, base.sha256)])
            with self.data_dir.lock(entry.file_name, interruption), suppress(FileNotFoundError):
                status = self._path_of(entry).stat()
                if os.path.samestat(status, os.fstat(base.file.descriptor)):  # not replaced meanwhile
                    self._set_aside(entry, error.detail)
            raise

    def check_programs(self) -> None:
        """Raise Unavailable if a program is absent without which no other image could be verified."""
        absent = [] if shutil.which("gpgv") else [("gpgv", "gpgv")]
        absent += [(needed.name, needed.debian) for needed in NEEDED if needed.find() is None]
        if self.keys and absent:
            program, package = absent[0]
            raise Unavailable(
                f"{program} is not installed; install the package {package}:"
                " without it no new signature can be verified"
            )

    def _path_of(self, entry: OsImage) -> Path:
        return entry.local_path or self.data_dir.path / entry.file_name

    def _rename_superseded(self, entry: OsImage, sha256: str, interruption: Interruption) -> bool:
        """Rename a downloaded image that was served before the configuration named another digest."""
        key = entry.file_name, sha256
        if self.records is None or entry.local_path or key not in {each.key for each in self.records.read()}:
            return False
        name = superseded_name(key)
        with self.data_dir.lock(name, interruption):
            is_renamed = self.data_dir.rename_image(entry.file_name, name)
            if is_renamed:
                self.data_dir.claim_files(name, f"{name}.json")
                move_sidecar(*(self.data_dir.path / each for each in (entry.file_name, name)))
        return is_renamed

    def _set_aside(self, entry: OsImage, reason: str) -> None:
        """Make a downloaded image absent, with its signature."""
        if entry.local_path is None and self.data_dir.set_aside(entry.file_name, reason):
            self.data_dir.remove_files(entry.file_name, signature_path(self._path_of(entry)).name)

    def _fetch_signature(self, entry: OsImage, interruption: Interruption) -> None:
        image, name = entry.file_name, signature_path(self._path_of(entry)).name

        def check_length(done: int, total: int | None) -> None:
            if max(done, total or 0) > MAX_SIGNATURE_BYTES:
                raise Unavailable(
                    f"the signature at {public_url(url)} has more than {MAX_SIGNATURE_BYTES} bytes"
                )

        url = entry.signature_url or _signature_url(entry.url)
        partial = self.data_dir.partial_path(image, name)
        self.download(url, partial, interruption, check_length, entry.cpu_architecture)
        self.data_dir.publish(image, name)


def _signature_url(url: str) -> str:
    """Return the URL of a file's signature: beside it, in a registry in the same image."""
    if is_registry_url(url):
        return f"{url}.sig"
    split = urlsplit(url)
    return split._replace(path=f"{split.path}.sig").geturl()
