"""``DATA_DIR``: the directory that is never harmed.

Only what the manifest says was made here is ever removed or renamed. What somebody put there by hand
is used and left alone. Every step leaves the directory such that a process that is killed behind it, or in
its midst, loses nothing and serves nothing wrong.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.catalog.download.partial_file import state_path
from image_service.catalog.storage.manifest import Entry, Identity, read_manifest, write_manifest
from image_service.concurrency.file_locks import FileLocks
from image_service.concurrency.interruption import Interruption
from image_service.files.atomic import publish_file, remove_temporary_files
from image_service.files.disk_quota import DiskQuota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MANIFEST = "image-service.json"
LOCKS = "image-service.lock"
DAY_SECONDS = 24 * 3600.0


class DataDir:
    """The directory, shared by threads and by processes. An image is known by the name of its file.

    Args:
        path: the directory.
        retention_seconds: for which an image stays that no configuration has any more.
        max_bytes: that its files may take; None: as much as there is.
        scratch: a directory for temporary files; None: this one.
        now: seconds since 1970.
    """

    _log = Logger()

    def __init__(
        self,
        path: Path,
        retention_seconds: float = DAY_SECONDS,
        max_bytes: int | None = None,
        *,
        scratch: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.scratch = scratch or path
        self._retention_seconds = retention_seconds
        self._now = now
        self._locks = FileLocks(path / LOCKS)
        self._presences: list[int] = []
        self._quota = DiskQuota(path, max_bytes, self._remove_refused)

    def open(self) -> None:
        """Make the directories if need be, and remove what processes that were killed left half written.

        Not while another process is there: what it is writing looks the same.

        Raises:
            OSError: one of them cannot be made or written.
        """
        for directory in {self.path, self.scratch}:
            directory.mkdir(parents=True, exist_ok=True)
            locks = FileLocks(directory / LOCKS)
            alone = locks.alone()
            if alone is not None:
                remove_temporary_files(directory)
            self._presences.append(locks.present(alone, Interruption()))

    def close(self) -> None:
        """Be gone; does nothing a second time."""
        while self._presences:
            os.close(self._presences.pop())

    def lock(self, image: str, interruption: Interruption) -> AbstractContextManager[None]:
        """Have an image for oneself, also before other processes, for as long as the block lasts.

        Args:
            image: the name of its file.
            interruption: ends the wait for another.

        Raises:
            Interrupted: the service stops.
        """
        return self._locks.held(image, interruption)

    def partial(self, image: str, name: str | None = None) -> Path:
        """Give the path to fetch a file to; what is there already may be gone on with.

        Args:
            image: what it belongs to.
            name: of the file; None: it is the image itself.

        Raises:
            OSError: the manifest cannot be written.
        """
        partial = _partial(self.path / (name or image))
        self.claim(image, partial.name, state_path(partial).name)
        return partial

    def claim(self, image: str, *names: str) -> None:
        """Take files for ours that nobody else would write: hidden ones, sidecars.

        Args:
            image: what they belong to.
            names: in the directory.
        """
        with self._manifest() as entries:
            self._entry(entries, image).files.update(dict.fromkeys(names))

    def publish(self, image: str, name: str | None = None) -> Path:
        """Give what was fetched to ``partial`` its name, unless somebody put a file there meanwhile.

        Args:
            image: what it belongs to.
            name: of the file; None: it is the image itself.

        Returns:
            its path.

        Raises:
            OSError: it cannot be renamed, or the manifest cannot be written.
        """
        path = self.path / (name or image)
        partial = _partial(path)
        if path.exists():
            partial.unlink()
        else:
            self.record(image, partial, path.name)
            publish_file(partial, path)
        state_path(partial).unlink(missing_ok=True)
        return path

    def record(self, image: str, file: Path, name: str) -> None:
        """Take a file for ours, as it is now, under the name that it is about to get.

        Args:
            image: what it belongs to.
            file: is not written to any more.
            name: in the directory.
        """
        with self._manifest() as entries:
            self._entry(entries, image).files[name] = Identity.of(file.stat())

    def set_aside(self, image: str, reason: str) -> bool:
        """Take an image that was fetched here out of the way, as ``….refused``.

        Args:
            image: the name of its file.
            reason: is remembered.

        Returns:
            whether it was; False: it is somebody else's, and stays.
        """
        path, refused = self.path / image, _refused(self.path / image)
        with self._manifest() as entries:
            entry = entries.get(image)
            if entry is None or not self._is_ours(image, entry):
                return False
            if refused.exists() and not self._is_ours(refused.name, entry):
                return False
            entry.refused, entry.files[refused.name] = reason, entry.files[image]
        path.replace(refused)
        with self._manifest() as entries:
            entries[image].files.pop(image, None)
        return True

    def discard(self, image: str, *names: str) -> None:
        """Remove files of an image that were made here.

        Args:
            image: what they belong to.
            names: in the directory; what is not there, or not ours, is left as it is.
        """
        with self._manifest() as entries:
            entry = entries.get(image, Entry(self._now()))
            for name in names:
                if self._is_ours(name, entry):
                    (self.path / name).unlink()
                entry.files.pop(name, None)

    def refused(self, image: str) -> str | None:
        """Tell why what was fetched of an image is set aside; None: nothing is."""
        entry = read_manifest(self.path / MANIFEST).get(image)
        return entry.refused if entry else None

    def refer(self, images: Iterable[str]) -> None:
        """Say that a configuration has these images now. To be repeated: other processes may not have them.

        Args:
            images: names of files; others than those that were made here are left out.
        """
        with self._manifest() as entries:
            for image in set(images) & entries.keys():
                entries[image].referred = self._now()

    def collect_garbage(self, kept: Iterable[str]) -> list[str]:
        """Remove what was made here and no configuration has had for the retention.

        Args:
            kept: images that stay all the same: they are referred to, read, or may be come back for.

        Returns:
            the images that were removed.
        """
        self.refer(kept := set(kept))
        self._remove_refused(lambda image: (self.path / image).exists())  # another is there
        old = self._now() - self._retention_seconds
        entries = read_manifest(self.path / MANIFEST)
        due = [image for image, entry in entries.items() if image not in kept and entry.referred <= old]
        return [image for image in due if self._remove(image, old)]

    def remove_image(self, image: str) -> bool:
        """Remove what was made here of an image, whoever has it configured.

        Args:
            image: the name of its file.

        Returns:
            whether nothing of it is there any more; False: it is somebody else's, or somebody is at work on
            it.
        """
        self._remove(image, math.inf)
        return not (self.path / image).exists()

    def reserved(self, image: str) -> AbstractContextManager[Callable[[int, int | None], None]]:
        """Keep room for an image while it is fetched; see ``Room.reserved``."""
        return self._quota.reserve(image)

    def _remove(self, image: str, old: float) -> bool:
        """Remove one image with all that belongs to it, unless somebody has it or had it just now."""
        with self._locks.tried(image) as free, self._manifest() as entries:
            entry = entries.get(image)
            if not free or entry is None or entry.referred > old:
                return False
            for name in entry.files:
                if self._is_ours(name, entry):
                    (self.path / name).unlink(missing_ok=True)
            del entries[image]
        self._log.info("{image} was removed: no configuration has it", image=image)
        return True

    def _remove_refused(self, of: Callable[[str], bool] = lambda _: True) -> bool:
        """Remove what is set aside and helps nobody; tell whether there was anything."""
        removed = False
        with self._manifest() as entries:
            for image, entry in entries.items():
                refused = _refused(self.path / image)
                if of(image) and self._is_ours(refused.name, entry):
                    refused.unlink()
                    del entry.files[refused.name]
                    entry.refused, removed = None, True
        return removed

    def _is_ours(self, name: str, entry: Entry) -> bool:
        """Whether a file that an entry names is there, and still the one that was made."""
        if name not in entry.files:
            return False
        with suppress(FileNotFoundError):
            status = (self.path / name).lstat()
            return entry.files[name] in {None, Identity.of(status)}
        return False

    def _entry(self, entries: dict[str, Entry], image: str) -> Entry:
        return entries.setdefault(image, Entry(self._now()))

    @contextmanager
    def _manifest(self) -> Iterator[dict[str, Entry]]:
        """Read the manifest, and write it where it was changed, before others do."""
        path = self.path / MANIFEST
        with self._locks.held(MANIFEST, Interruption()):
            entries, before = read_manifest(path), read_manifest(path)
            yield entries
            if entries != before:
                write_manifest(path, entries)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _refused(path: Path) -> Path:
    return path.with_name(f"{path.name}.refused")
