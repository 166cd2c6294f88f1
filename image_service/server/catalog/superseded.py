"""Superseded base images: kept for the mounts that read them, and opened again at the next start.

If another image has taken the name of a downloaded one, the file of that is renamed. An image that no mount
reads any more is released, with such a file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import BaseImageError, Unavailable, describe_os_error
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.status import SupersededBaseBody
from image_service.server.catalog.storage.base_records import superseded_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.lifecycle import BaseImageLifecycle
    from image_service.server.catalog.lifecycle.options import LifecycleDependencies
    from image_service.server.catalog.remote.opening import RemoteImages
    from image_service.server.catalog.storage.base_records import BaseRecord, RecordKey

MAX_SUPERSEDED = 4
"""Superseded base images that the next start finds again, the latest ones."""
RETRY_SECONDS = 60.0
"""Until one is opened again that could not be, such as while its origin is away."""
BUSY_RETRY_AFTER_SECONDS = 5


@attrs.define(eq=False)
class _Superseded:
    """A superseded base image.

    Args:
        base: None: it is being opened.
        is_recorded: the next start finds it again.
    """

    key: RecordKey
    kind: Kind
    base: BaseImage | None = None
    is_recorded: bool = True


class SupersededBases:
    """The superseded base images of a catalog.

    Args:
        served: returns the lifecycles of the configured images.
        remote: opens remote images; None: there are none.
    """

    _log = Logger()

    def __init__(
        self,
        shared: LifecycleDependencies,
        served: Callable[[], Iterable[BaseImageLifecycle]],
        remote: RemoteImages | None,
    ) -> None:
        self._shared = shared
        self._served = served
        self._remote = remote
        self._records = shared.fetcher.records
        self._to_open: list[BaseRecord] = []
        self._kept: list[_Superseded] = []
        self._mounts: Mapping[str, int] = {}
        self._interruption = Interruption()
        self._working: list[Deferred[None]] = []
        # Not a slot of the configured images: an origin may be slow.
        self._one_at_a_time = DeferredSemaphore(1)

    def start(self) -> None:
        """Open those that processes before this one have recorded; the others when that is known of them."""
        if self._records is not None:
            self._to_open = list(self._records.read())
            self.update()

    async def stop(self) -> None:
        """Wait until no image is being opened or removed."""
        self.interrupt()
        await gatherResults(self._working)

    def interrupt(self) -> None:
        """Open and remove nothing more."""
        self._interruption.interrupt()

    def update(self) -> None:
        """Open the recorded images of which it is known by now that no configured one is the same."""
        for record in () if self._interruption.is_set else tuple(self._to_open):
            is_superseded = self._is_superseded(record)
            if is_superseded is not None:
                self._to_open.remove(record)
            if is_superseded:
                self._work(self._open(record, self._keep(record.key, Kind(record.entry.image_type))))

    def add(self, base: BaseImage) -> None:
        """Keep a base image that the catalog serves no longer, if such images are recorded."""
        if self._records is None:
            return
        kind = Kind.DISCONNECTED_ISO if base.disconnected else Kind.FULL_ISO
        image = f"rhcos-{kind.value}-{base.version}-{base.architecture}.iso"
        self._keep((image, base.sha256), kind).base = base

    def find(self, sha256: str, kind: Kind) -> list[BaseImage]:
        """Return those with a digest; raises Unavailable while one is being opened."""
        found = [each for each in self._kept if each.key[1] == sha256 and each.kind is kind]
        is_waiting = any(
            (record.sha256, record.entry.image_type) == (sha256, kind.value) for record in self._to_open
        )
        if is_waiting or any(each.base is None for each in found):
            raise Unavailable(
                "the base image of this mount is being opened", retry_after_seconds=BUSY_RETRY_AFTER_SECONDS
            )
        return [each.base for each in found if each.base is not None]

    def find_key(self, base: BaseImage) -> RecordKey | None:
        """Return the key of a superseded base image; None: it is not one."""
        return next((each.key for each in self._kept if each.base is base), None)

    def keeps(self, base: BaseImage) -> bool:
        """Return True if `find` finds a base image, not another one with its digest."""
        return self.find_key(base) is not None

    @property
    def is_opening(self) -> bool:
        """True while some are being opened, or it is not known yet whether they are superseded."""
        return bool(self._to_open) or any(each.base is None for each in self._kept)

    def record_mounts(self, mounts: Mapping[str, int]) -> None:
        """Take over how many mounts read each base image, by digest; open none that no mount reads."""
        self._mounts = mounts
        unread = [each for each in self._to_open if each.sha256 not in mounts]
        self._to_open = [each for each in self._to_open if each.sha256 in mounts]
        self._forget([each.key for each in unread])

    def release(self, base: BaseImage) -> None:
        """Drop a base image that no mount reads, and its file, unless it is served."""
        for each in [each for each in self._kept if each.base is base]:
            self._kept.remove(each)
            self._forget([each.key])

    @property
    def names(self) -> set[str]:
        """The names in ``DATA_DIR`` of those that are recorded."""
        keys = {each.key for each in self._kept if each.is_recorded} | {each.key for each in self._to_open}
        return {image for image, _ in keys} | set(map(superseded_name, keys))

    def describe(self) -> tuple[SupersededBaseBody, ...]:
        """Return the images that are kept, with the number of their mounts."""
        return tuple(
            SupersededBaseBody(
                version=each.base.version,
                cpu_architecture=each.base.architecture,
                type=each.kind.value,
                sha256=each.base.sha256,
                size=each.base.file.size,
                mounts=self._mounts.get(each.base.sha256, 0),
                is_kept_at_restart=each.is_recorded,
            )
            for each in self._kept
            if each.base is not None
        )

    def _is_superseded(self, record: BaseRecord) -> bool | None:
        """Return True if the configured image of its name has another digest, or there is none.

        None: that is not known before the configured one is open.
        """
        for lifecycle in self._served():
            entry = lifecycle.entry
            if entry.file_name == record.entry.file_name:
                if lifecycle.base is not None:
                    return lifecycle.base.sha256 != record.sha256
                return True if not entry.remote and entry.sha256 not in {None, record.sha256} else None
        return True

    def _keep(self, key: RecordKey, kind: Kind) -> _Superseded:
        kept = _Superseded(key, kind)
        self._kept = [*(each for each in self._kept if each.key != key), kept]
        surplus = [each for each in self._kept if each.is_recorded][:-MAX_SUPERSEDED]
        for each in surplus:
            each.is_recorded = False
        self._forget([each.key for each in surplus])
        return kept

    def _forget(self, keys: Collection[RecordKey]) -> None:
        """Remove records, with the files that another image has taken the names of."""
        served = {
            (each.entry.file_name, each.base.sha256) for each in self._served() if each.base is not None
        }
        gone = [key for key in keys if key not in served]
        if gone and not self._interruption.is_set:
            self._work(self._remove(gone))

    async def _remove(self, keys: Collection[RecordKey]) -> None:
        fetcher = self._shared.fetcher
        try:
            await self._shared.run_in_thread(partial(fetcher.remove_superseded, keys))
        except (OSError, Unavailable) as error:  # the collection of garbage removes it later
            reason = error.detail if isinstance(error, Unavailable) else describe_os_error(error)
            self._log.warn("a superseded base image was not removed: {reason}", reason=reason)

    async def _open(self, record: BaseRecord, kept: _Superseded) -> None:
        image = record.entry.file_name
        try:
            if record.entry.remote and self._remote is not None:
                self._remote.start()
            base = await self._one_at_a_time.run(
                self._shared.run_in_thread, partial(self._open_in_thread, record)
            )
        except Interrupted:
            return
        except (BaseImageError, FileNotFoundError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else error.detail
            self._log.warn(
                "superseded base image {image} is lost: {reason}; its mounts have to start over",
                image=image,
                reason=reason,
            )
            self._drop(kept)
            self._forget([record.key])
        except (Unavailable, OSError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else error.detail
            self._log.warn(
                "superseded base image {image} cannot be opened now: {reason}", image=image, reason=reason
            )
            self._drop(kept)
            if kept.is_recorded:
                self._to_open.append(record)  # for the next ``update``
        except Exception:  # noqa: BLE001 - a bug in reading one image must not harm the others
            self._log.failure("unexpected error while opening superseded base image {image}", image=image)
            self._drop(kept)
        else:
            self._shared.files.add_file(base.file)
            kept.base = base
            self._log.info("superseded base image {image} is open, for its mounts", image=image)
            self._shared.options.on_superseded(base)

    def _drop(self, dropped: _Superseded) -> None:
        """Drop an image, unless `add` has put the same one in its place meanwhile."""
        self._kept = [each for each in self._kept if each is not dropped]

    def _open_in_thread(self, record: BaseRecord) -> BaseImage:
        if record.pin is None:
            return self._shared.fetcher.open_superseded(record, self._interruption)
        if self._remote is None:
            raise BaseImageError("remote images are not configured")
        return self._remote.open(record.entry, self._interruption, lambda _: None, record.pin).base

    def _work(self, work: Coroutine[Deferred[Any], Any, None]) -> None:
        self._working = [each for each in self._working if not each.called]
        self._working.append(Deferred.fromCoroutine(work))
