"""From an entry of the configuration to an open base image. Runs in threads.

Each step has the image for itself, also before other processes on the directory: who comes second waits,
and finds what the first has fetched and hashed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import attrs

from image_service.catalog.download.downloader import ReportProgress
from image_service.catalog.lifecycle.opening import open_base_image, signature_path
from image_service.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES, KeyRing
from image_service.catalog.storage.data_dir import DataDir  # noqa: TC001 - attrs resolves annotations at run time
from image_service.catalog.storage.digest import recheck_sha256
from image_service.concurrency.interruption import Interruption
from image_service.errors import BaseImageError, Unavailable

if TYPE_CHECKING:
    from image_service.images.base import BaseImage
    from image_service.settings.os_images import OsImage

Fetch: TypeAlias = Callable[[str, Path, Interruption, ReportProgress], None]


@attrs.frozen
class ImageFetcher:
    """Makes base images be there, and opens them.

    Args:
        data_dir: where those are that are fetched.
        fetch: makes a partial file complete, as ``Downloader.download`` does.
        interruption: ends everything from another thread.
        keys: one of which must have signed an image; None: no signature is asked for.
    """

    data_dir: DataDir
    fetch: Fetch
    interruption: Interruption
    keys: KeyRing | None = None

    def path(self, entry: OsImage) -> Path:
        """Tell where an image is, or will be."""
        return entry.local_path or self.data_dir.path / entry.file_name

    def is_there(self, entry: OsImage) -> bool:
        """Tell whether there is nothing to fetch of an image."""
        path = self.path(entry)
        complete = path.exists() and (self.keys is None or signature_path(path).exists())
        return entry.local_path is not None or complete

    def fetch_if_absent(self, entry: OsImage, progress: ReportProgress = lambda *_: None) -> None:
        """Make an image be there, if need be by fetching it.

        Args:
            entry: the image.
            progress: is told the bytes that are there, and those of the whole where they are known.

        Raises:
            Unavailable: not now; says why, and when to ask again if the origin says so.
            OSError: the directory cannot be written.
            Interrupted: the service stops.
        """
        image, path = entry.file_name, self.path(entry)
        if entry.local_path:
            return
        with self.data_dir.lock(image, self.interruption):
            if not path.exists():
                self._fetch(image, entry.url, progress)
            if self.keys and not signature_path(path).exists():
                self._fetch_signature(entry)

    def open(self, entry: OsImage) -> BaseImage:
        """Open an image that is there, after it was verified.

        Args:
            entry: the image.

        Returns:
            the image; its descriptor belongs to the caller.

        Raises:
            BaseImageError: it is not what it should be. If it was fetched it is set aside, and can be
                fetched again.
            Unavailable: it changed meanwhile.
            OSError: it is not there, or cannot be read.
            Interrupted: the service stops.
        """
        image, sidecar = entry.file_name, self.data_dir.path / f"{entry.file_name}.json"
        with self.data_dir.lock(image, self.interruption):
            self.interruption.raise_if_interrupted()
            self.data_dir.claim_files(image, sidecar.name)
            try:
                return open_base_image(entry, self.path(entry), sidecar, self.interruption, self.keys)
            except BaseImageError as error:
                self._set_aside(entry, error.detail)
                raise

    def recheck(self, entry: OsImage, base: BaseImage) -> None:
        """See that an image is still what it was when it was opened; takes minutes, and little else.

        Args:
            entry: the image.
            base: what ``open`` gave.

        Raises:
            BaseImageError: it has rotted. If it was fetched it is set aside, and can be fetched again.
            OSError: it cannot be read.
            Interrupted: the service stops.
        """
        try:
            recheck_sha256(base.file, base.sha256, self.interruption)
        except BaseImageError as error:
            with self.data_dir.lock(entry.file_name, self.interruption):
                if self._is_there(entry, base):
                    self._set_aside(entry, error.detail)
            raise

    def _is_there(self, entry: OsImage, base: BaseImage) -> bool:
        """Whether the open file is still the one of this name: another process may have fetched another."""
        with suppress(FileNotFoundError):
            return os.path.samestat(self.path(entry).stat(), os.fstat(base.file.descriptor))
        return False

    def _set_aside(self, entry: OsImage, reason: str) -> None:
        """Let what was fetched be fetched again, with its signature."""
        if entry.local_path is None and self.data_dir.set_aside(entry.file_name, reason):
            self.data_dir.remove_files(entry.file_name, signature_path(self.path(entry)).name)

    def _fetch_signature(self, entry: OsImage) -> None:
        image, name = entry.file_name, signature_path(self.path(entry)).name

        def limit(done: int, total: int | None) -> None:
            if max(done, total or 0) > MAX_SIGNATURE_BYTES:
                raise Unavailable(f"the signature at its URL has more than {MAX_SIGNATURE_BYTES} bytes")

        url = entry.signature_url or _signature_url(entry.url)
        self.fetch(url, self.data_dir.partial_path(image, name), self.interruption, limit)
        self.data_dir.publish(image, name)

    def _fetch(self, image: str, url: str, progress: ReportProgress) -> None:
        partial = self.data_dir.partial_path(image)
        with self.data_dir.reserve_space(image) as check:

            def tell(done: int, total: int | None) -> None:
                check(done, total)
                progress(done, total)

            self.fetch(url, partial, self.interruption, tell)
        self.data_dir.publish(image)


def _signature_url(url: str) -> str:
    split = urlsplit(url)
    return split._replace(path=f"{split.path}.sig").geturl()
