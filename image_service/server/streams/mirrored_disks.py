"""Further artifacts of releases that ``COREOS_STREAMS`` wants mirrored, such as ``metal/raw.xz``.

Each is fetched and verified as a base image is, and published once it is there. Until then the mirror's
documents have its original location.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted
from image_service.common.files.local_file import LocalFile
from image_service.common.files.open_files import OpenFiles
from image_service.core.errors import ImageServiceError
from image_service.server.catalog.lifecycle.opening import load_sidecar, verify_file
from image_service.server.streams.release_preparer import MirroredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.families.coreos.stream_metadata import OriginalFile
    from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
    from image_service.server.catalog.lifecycle.signature import KeyRing
    from image_service.server.streams.release_preparer import ReleasePreparer
    from image_service.server.streams.stream import StreamRelease
    from image_service.settings.os_images import OsImage

RETRIES = Backoff(min_seconds=10.0, max_seconds=3600.0)


@attrs.frozen
class _VerifiedDisk:
    """A file that was verified; its reader closes it."""

    file: LocalFile
    sha256: str


class MirroredDisks:
    """The further artifacts of the releases that are desired.

    Args:
        fetcher: of base images.
        preparer: gets the signatures.
        in_thread: runs downloads, one at a time.
        interruption: ends them.
        backoff: of downloads that fail.
    """

    _log = Logger()

    def __init__(
        self,
        fetcher: ImageFetcher,
        preparer: ReleasePreparer,
        in_thread: InThread,
        interruption: Interruption,
        backoff: Backoff = RETRIES,
    ) -> None:
        self._fetcher = fetcher
        self._preparer = preparer
        self._in_thread = in_thread
        self._interruption = interruption
        self._backoff = backoff
        self._open_files = OpenFiles()
        self._asked: dict[str, tuple[OriginalFile, OsImage]] = {}
        self._ready: dict[str, MirroredFile] = {}
        self._of_releases: dict[StreamRelease, Mapping[tuple[str, str], MirroredFile]] = {}
        self._desired: tuple[StreamRelease, ...] = ()
        self._running: Deferred[None] | None = None
        self.on_change: Callable[[], None] = lambda: None

    def update(self, desired: Iterable[StreamRelease]) -> None:
        """Fetch the artifacts of these releases, and forget those of others."""
        self._desired = tuple(desired)
        self._asked = {
            entry.file_name: (file, entry)
            for release in self._desired
            for file, entry in release.mirrored_files
        }
        self._ready = {name: file for name, file in self._ready.items() if name in self._asked}
        self._group()
        unsigned = {name for name, file in self._ready.items() if file.is_signature_pending}
        absent = [name for name in self._asked if name not in self._ready or name in unsigned]
        if absent and self._running is None and not self._interruption.is_set:
            running = Deferred.fromCoroutine(self._fetch_all(absent))
            if not running.called:
                self._running = running

    def find(self, release: StreamRelease) -> Mapping[tuple[str, str], MirroredFile]:
        """Return the artifacts of a release that are there, by platform and format."""
        return self._of_releases.get(release, {})

    @property
    def names(self) -> set[str]:
        """Their names in ``DATA_DIR``, those that are not there yet included."""
        return set(self._asked)

    async def stop(self) -> None:
        """Wait for a download that was interrupted, and close the files."""
        if self._running is not None:
            await self._running
        self._open_files.close()

    def _group(self) -> None:
        self._of_releases = {
            release: {
                (file.platform, file.format): self._ready[entry.file_name]
                for file, entry in release.mirrored_files
                if entry.file_name in self._ready
            }
            for release in self._desired
        }

    async def _fetch_all(self, names: list[str]) -> None:
        """Fetch until nothing is absent. Raises nothing."""
        failures = 0
        try:
            while names:
                fetched = [name for name in names if await self._fetch(name)]
                failures = 0 if fetched else failures + 1
                names = [name for name in self._asked if name not in self._ready]
                if names and failures:
                    delay = self._backoff.delay_seconds(failures)
                    await self._in_thread(partial(self._interruption.wait, delay))
        except Interrupted:
            pass
        finally:
            self._running = None

    async def _fetch(self, name: str) -> bool:
        """Return True if a file is there."""
        if name not in self._asked:  # meanwhile
            return False
        file, entry = self._asked[name]
        try:
            found = await self._in_thread(partial(self._prepare, file, entry))
        except Interrupted:
            raise
        except (ImageServiceError, OSError) as error:
            self._log.warn("{name} cannot be mirrored: {reason}", name=name, reason=str(error))
            return False
        except Exception:  # noqa: BLE001 - a defect in one file must not harm the others
            self._log.failure("unexpected error while mirroring {name}", name=name)
            return False
        if name in self._asked:
            self._ready[name] = found
            self._group()
            self.on_change()
        return True

    def _prepare(self, file: OriginalFile, entry: OsImage) -> MirroredFile:
        self._fetcher.fetch_if_absent(entry, self._interruption)
        disk = self._fetcher.open_by(_open_disk, entry, self._interruption)
        self._open_files.add_file(disk.file)
        found = MirroredFile(file.artifact.name, disk.sha256, 0, disk.file.size, file=disk.file)
        return self._preparer.with_signature(entry.file_name, found, file.artifact)


def _open_disk(
    entry: OsImage, path: Path, sidecar: Path, interruption: Interruption, keys: KeyRing | None
) -> _VerifiedDisk:
    """Open and verify a file; raises as ``open_base_image``."""
    file = LocalFile.open(path)
    try:
        return _VerifiedDisk(file, verify_file(entry, file, load_sidecar(sidecar, file), interruption, keys))
    except BaseException:
        file.close()
        raise
