"""``DATA_DIR``: nothing in it is removed or renamed that the manifest does not list, unless forced.

Files that an operator put there are used and left alone. After every step the directory is such that a
process killed then, or during the step, loses nothing and serves nothing wrong.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.concurrency.file_locks import FileLocks
from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.atomic import publish_file, remove_temporary_files
from image_service.common.files.disk_quota import DiskQuota
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.partial_file import state_path
from image_service.server.catalog.storage.manifest import (
    FileIdentity,
    ManifestEntry,
    read_manifest,
    write_manifest,
)
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MANIFEST = "image-service.json"
LOCKS = "image-service.lock"
DAY_SECONDS = 24 * 3600.0
SIGNATURE_SUFFIX = ".sig"
SUPERSEDED_SUFFIX = ".superseded"
"""Of downloaded images in whose place there is another one."""

_log = Logger()


def create_directory(path: Path) -> None:
    """Create a configured directory and those above it, unless it exists, and log that."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        _log.info("created the directory {path}, which did not exist", path=str(path.absolute()))


class DataDir:
    """The directory, shared by threads and processes. An image is identified by the name of its file.

    Args:
        retention_seconds: how long an image stays that no configuration refers to.
        max_bytes: all files together but those of the snapshot store; None: the whole disk.
        scratch: directory of temporary files; None: this one.
        now: seconds since the epoch.
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
        self.quota = DiskQuota(
            path, max_bytes, (self._remove_refused, self._remove_superseded), excluded=(DATABASE_FILE,)
        )

    def open(self) -> None:
        """Create the directories if absent, and remove temporary files of processes that were killed.

        Removes nothing while another process is present, whose temporary files look the same.
        """
        for directory in {self.path, self.scratch}:
            create_directory(directory)
            locks = FileLocks(directory / LOCKS)
            alone = locks.acquire_exclusive_presence()
            if alone is not None:
                remove_temporary_files(directory)
            self._presences.append(locks.acquire_presence(alone, Interruption()))

    def close(self) -> None:
        """End this process's presence; idempotent."""
        while self._presences:
            os.close(self._presences.pop())

    def lock(self, image: str, interruption: Interruption) -> AbstractContextManager[None]:
        """Exclude other threads and processes from an image; raises Interrupted if the service stops."""
        return self._locks.lock(image, interruption)

    def partial_path(self, image: str, name: str | None = None) -> Path:
        """Return the path to download a file of an image to (by default the image); it may exist in part."""
        partial = _partial_path(self.path / (name or image))
        self.claim_files(image, partial.name, state_path(partial).name)
        return partial

    def claim_files(self, image: str, *names: str) -> None:
        """List files that only this service writes (hidden ones, sidecars) as belonging to an image."""
        with self._manifest() as entries:
            self._entry(entries, image).files.update(dict.fromkeys(names))

    def publish(self, image: str, name: str | None = None) -> Path:
        """Rename a downloaded partial file, unless an operator put a file there; return its path."""
        path = self.path / (name or image)
        partial = _partial_path(path)
        if path.exists():
            partial.unlink()
        else:
            with self._manifest() as entries:
                entry = self._entry(entries, image)
                entry.files[path.name] = FileIdentity.of(partial.stat())
                if path.name == image:
                    entry.sha256 = None
            publish_file(partial, path)
        state_path(partial).unlink(missing_ok=True)
        return path

    def recorded_sha256(self, image: str) -> str | None:
        """Return the SHA-256 of an image as it was downloaded; None: it was not, or it is not known."""
        entry = read_manifest(self.path / MANIFEST).get(image)
        return entry.sha256 if entry else None

    def record_sha256(self, image: str, sha256: str) -> None:
        """Record the SHA-256 of an image that was downloaded, unless it is recorded already."""
        with self._manifest() as entries:
            entry = entries.get(image)
            if entry and image in entry.files:
                entry.sha256 = entry.sha256 or sha256

    def set_aside(self, image: str, reason: str) -> bool:
        """Rename an image to ``….refused``, and store why; return False if it was not downloaded here."""
        path, refused = self.path / image, _refused_path(self.path / image)
        with self._manifest() as entries:
            entry = entries.get(image)
            if entry is None or not self._is_managed(image, entry):
                return False
            if refused.exists() and not self._is_managed(refused.name, entry):
                return False
            entry.refused, entry.files[refused.name] = reason, entry.files[image]
            entry.sha256 = None
        path.replace(refused)
        with self._manifest() as entries:
            entries[image].files.pop(image, None)
        return True

    def rename_image(self, image: str, renamed: str) -> bool:
        """Rename a downloaded image, with its signature; return False if it was not downloaded here."""
        with self._manifest() as entries:
            entry = entries.get(image)
            if entry is None or not self._is_managed(image, entry):
                return False
            names = {f"{image}{suffix}": f"{renamed}{suffix}" for suffix in ("", SIGNATURE_SUFFIX)}
            moved = {name: to for name, to in names.items() if self._is_managed(name, entry)}
            files = {to: entry.files[name] for name, to in moved.items()}
            entries[renamed] = ManifestEntry(self._now(), files=files, sha256=entry.sha256)
        for name, to in moved.items():
            (self.path / name).replace(self.path / to)
        with self._manifest() as entries:
            for name in moved:
                entries[image].files.pop(name, None)
            entries[image].sha256 = None
        return True

    def remove_files(self, image: str, *names: str) -> None:
        """Remove those files of an image that are there and were made here."""
        with self._manifest() as entries:
            entry = entries.get(image, ManifestEntry(self._now()))
            for name in names:
                if self._is_managed(name, entry):
                    (self.path / name).unlink()
                entry.files.pop(name, None)

    def collect_garbage(self, retained: Iterable[str]) -> list[str]:
        """Remove images made here to which no configuration has referred for the retention time.

        Args:
            retained: images that this process's configuration refers to.
        """
        now, retained = self._now(), set(retained)
        with self._manifest() as entries:
            for image, entry in entries.items():  # a time in the future is of a clock that was ahead
                entry.referred = now if image in retained else min(entry.referred, now)
        self._remove_refused(lambda image: (self.path / image).exists())  # replaced by a good one
        limit = now - self._retention_seconds
        entries = read_manifest(self.path / MANIFEST)
        due = [image for image, entry in entries.items() if image not in retained and entry.referred <= limit]
        removed = [image for image in due if self._remove(image, limit)]
        for image in removed:
            self._log.info("removed {image}: no configuration refers to it", image=image)
        return removed

    def remove_image(self, image: str, *, force: bool = False) -> None:
        """Remove an image and what was made here for it; `force`: also one that was not, or was changed.

        Raises:
            Unavailable: nothing was removed; says why.
        """
        with self._locks.try_lock(image) as is_free, self._manifest() as entries:
            if not is_free:
                raise Unavailable("not removed: another process or thread is working on it")
            entry = entries.get(image, ManifestEntry(self._now()))
            path = self.path / image
            if force:
                entry.files[image] = None
            elif path.exists() and not self._is_managed(image, entry):
                was = "was changed after its download" if image in entry.files else "was not downloaded here"
                raise Unavailable(f"not removed: it {was}; --force removes it all the same")
            self._unlink_files(entry)
            entries.pop(image, None)

    def _remove(self, image: str, limit: float) -> bool:
        """Remove an image with its files, unless it is locked or was referred to after `limit`."""
        with self._locks.try_lock(image) as is_free, self._manifest() as entries:
            entry = entries.get(image)
            if not is_free or entry is None or entry.referred > limit:
                return False
            self._unlink_files(entry)
            del entries[image]
        return True

    def _unlink_files(self, entry: ManifestEntry) -> None:
        for name in entry.files:
            if self._is_managed(name, entry):
                (self.path / name).unlink(missing_ok=True)

    def _remove_superseded(self) -> None:
        """Remove images that are only kept for the mounts which read them."""
        for image in read_manifest(self.path / MANIFEST):
            if image.endswith(SUPERSEDED_SUFFIX):
                self.remove_image(image, force=True)

    def _remove_refused(self, is_due: Callable[[str], bool] = lambda _: True) -> None:
        """Remove downloads that are set aside."""
        with self._manifest() as entries:
            for image, entry in entries.items():
                refused = _refused_path(self.path / image)
                if is_due(image) and self._is_managed(refused.name, entry):
                    refused.unlink()
                    del entry.files[refused.name]
                    entry.refused = None

    def _is_managed(self, name: str, entry: ManifestEntry) -> bool:
        """Return True if a file that an entry lists is there, and is still the one that was made."""
        if name not in entry.files:
            return False
        with suppress(FileNotFoundError):
            status = (self.path / name).lstat()
            return entry.files[name] in {None, FileIdentity.of(status)}
        return False

    def _entry(self, entries: dict[str, ManifestEntry], image: str) -> ManifestEntry:
        return entries.setdefault(image, ManifestEntry(self._now()))

    @contextmanager
    def _manifest(self) -> Iterator[dict[str, ManifestEntry]]:
        """Read the manifest under its lock, and write it back if it was changed."""
        path = self.path / MANIFEST
        with self._locks.lock(MANIFEST, Interruption()):
            entries, before = read_manifest(path), read_manifest(path)
            yield entries
            if entries != before:
                write_manifest(path, entries)


def _partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _refused_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.refused")
