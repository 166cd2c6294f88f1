"""From an entry of the configuration to an open base image. Runs in threads.

Each step has the image for itself, also before other processes on the directory: who comes second waits,
and finds what the first has fetched and hashed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.catalog.data_dir import DataDir  # noqa: TC001 - attrs resolves annotations at run time
from image_service.catalog.interruption import Interruption
from image_service.catalog.opening import open_base_image
from image_service.errors import BaseImageError

if TYPE_CHECKING:
    from image_service.images.base import BaseImage
    from image_service.os_images import OsImage

Progress: TypeAlias = Callable[[int, int | None], None]
Fetch: TypeAlias = Callable[[str, Path, Interruption, Progress], None]


@attrs.frozen
class Keeper:
    """Makes base images be there, and opens them.

    Args:
        data_dir: where those are that are fetched.
        fetch: makes a partial file complete, as ``Downloader.fetch`` does.
        interruption: ends everything from another thread.
    """

    data_dir: DataDir
    fetch: Fetch
    interruption: Interruption

    def path(self, entry: OsImage) -> Path:
        """Tell where an image is, or will be."""
        return entry.local_path or self.data_dir.path / entry.file_name

    def obtain(self, entry: OsImage, progress: Progress = lambda *_: None) -> None:
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
        if entry.local_path or path.exists():
            return
        with self.data_dir.lock(image, self.interruption):
            if not path.exists():
                self._fetch(image, entry.url, progress)

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
            self.interruption.check()
            self.data_dir.claim(image, sidecar.name)
            try:
                return open_base_image(entry, self.path(entry), sidecar, self.interruption)
            except BaseImageError as error:
                if entry.local_path is None:
                    self.data_dir.set_aside(image, error.detail)
                raise

    def _fetch(self, image: str, url: str, progress: Progress) -> None:
        partial = self.data_dir.partial(image)
        with self.data_dir.reserved(image) as check:

            def tell(done: int, total: int | None) -> None:
                check(done, total)
                progress(done, total)

            self.fetch(url, partial, self.interruption, tell)
        self.data_dir.publish(image)
