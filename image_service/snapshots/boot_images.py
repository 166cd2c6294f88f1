"""Boot images for requests: of the newest snapshot, or of the one that the reader is in the midst of.

    no validator, one range      a mount: the version that this reader is reading, if it is reading any
    If-Match, If-Range           the version that they name, if it is retained
    everything else              the newest version

Several processes may serve one reader by turns. What it begins to read is in the store before
it gets any of it, and the version of its key tells the other processes to look there.

A version is one snapshot laid over one base. A mount whose version is lost, or has ended, is refused for as
long as it is in progress: it must not get the bytes of another in the midst of one.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias
from weakref import ref

from twisted.internet.defer import Deferred

from image_service.concurrency.coordination import LocalCoordination
from image_service.concurrency.single_flight import detached
from image_service.errors import UpstreamTimeout
from image_service.images.reference import ImageRef, Reader, Ref
from image_service.snapshots.cached_lookup import CachedLookup
from image_service.snapshots.composed_images import ComposedImages, Lost
from image_service.snapshots.mounts import Mount, Mounts
from image_service.snapshots.stored_mounts import KeptMounts, is_of
from image_service.snapshots.version_finder import Pinned, VersionFinder
from image_service.snapshots.versions import Composed, ImageRequest, ReadMode, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.images.base import BaseImage
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials
    from image_service.snapshots.composer import Composer
    from image_service.snapshots.resolver import Resolver
    from image_service.snapshots.snapshot import Snapshot
    from image_service.snapshots.stored_mounts import Memory, Recalled

PATIENCE_SECONDS = 2.5
"""How long a request waits for its image: firmware gives up after 5 s, and is to be told before 3."""
MAX_RETAINED = 4096
"""Versions that can be found by their entity tags."""
MAX_HOLD_SECONDS = 1.0
"""How long a connection reads on without being counted among the latest readers of an image."""

_Tag: TypeAlias = "tuple[Ref, Credentials | None, str]"


class Snapshots(Pinned, Protocol):
    """Where customizations are pinned."""

    def goes_on_until(self, snapshot: Snapshot) -> float:
        """How long ``keep`` has nothing to wait for, unless its tenure ends or its stamp is renewed."""

    async def keep(self, snapshot: Snapshot) -> None:
        """See that a mount may go on with it."""

    async def customization(self, snapshot: Snapshot) -> Customization | None:
        """What it holds; None: it is not kept any more."""


class BootImages:
    """Finds and makes images.

    Args:
        composer: makes them.
        resolver: completes references.
        snapshots: what they are made of.
        memory: knows what was being read before this process began.
        clock: tells the time.
        window_seconds: how long after its last read a mount is in progress.
        held_bytes: what all composed images may hold in memory.
        count: is told what happened, by a word, for metrics.
        coordination: with the processes that may serve the same readers.
    """

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        composer: Composer,
        resolver: Resolver,
        snapshots: Snapshots,
        memory: Memory,
        clock: IReactorTime,
        *,
        window_seconds: float,
        held_bytes: int,
        count: Callable[[str], None] = lambda _: None,
        coordination: Coordination | None = None,
    ) -> None:
        self._finder = VersionFinder(composer, resolver, snapshots)
        self._snapshots = snapshots
        self._clock = clock
        self._window_seconds = window_seconds
        self._coordination = coordination or LocalCoordination()
        self.mounts: Mounts[Version] = Mounts(clock, window_seconds, memory.reader_of, self._coordination)
        self._kept = KeptMounts(memory, self.mounts, clock, window_seconds, self._coordination)
        self.save_seconds = self._kept.save_seconds
        self._composed = ComposedImages(composer, snapshots, held_bytes, count)
        self._retained: OrderedDict[_Tag, Version] = OrderedDict()
        self._superseded: list[tuple[float, BaseImage]] = []

    @property
    def held_bytes(self) -> int:
        """What all composed images hold in memory."""
        return self._composed.held_bytes

    def at_once(self, want: ImageRequest) -> Composed | None:
        """Give what is wanted where nothing need be asked, composed or waited for.

        Args:
            want: what.

        Returns:
            the image; None: ``get`` it.
        """
        version = self._being_read(want)
        if version is None:
            version = None if self._may_be_remembered(want) else self._finder.newest_at_once(want.reader)
        elif self._goes_on_until(version) <= self._clock.seconds():
            return None
        return None if version is None else self._composed.known(version)

    def get(self, want: ImageRequest) -> Deferred[Composed]:
        """Find or make what is wanted.

        Args:
            want: what.

        Returns:
            fires with the image; with UpstreamTimeout where it is not there after ``PATIENCE_SECONDS``. It
            is still being made then: asking again finds it.
        """
        found = Deferred.fromCoroutine(self._find(want))
        return detached(found).addTimeout(PATIENCE_SECONDS, self._clock, _too_slow)

    def reads(self, want: ImageRequest, composed: Composed) -> Mount[Version]:
        """Note that an answer with content begins.

        Args:
            want: what was wanted.
            composed: what is served.

        Returns:
            the reader's mount, to be given to ``mounts.end`` when the answer is over. Nothing is to be sent
            before its ``noting`` is over.
        """
        reader, version = want.reader, composed.version
        mount = self.mounts.begin(reader, version)
        mount.answers += 1
        self.shows(want, composed)
        self._kept.note(reader, mount)
        return mount

    def hold(self, reader: Reader, mount: Mount[Version], now: float) -> CachedLookup | None:
        """Note that a reader reads on, if nothing need be waited for.

        Args:
            reader: who, without a validator.
            mount: from ``reads``, for the same reader.
            now: the clock's seconds.

        Returns:
            what is read, as ``at_once`` says too, and how long nothing need be asked. None: the mount is
            over, or there is something to wait for.
        """
        version = mount.version
        is_unchanged = self._coordination.watch(*_keys(mount))  # first: it sees what changes from here on
        good_until = self._goes_on_until(version)
        composed = self._composed.known(version)
        if now >= good_until or composed is None or not self.mounts.go_on(reader, mount):
            return None
        if not self._kept.is_noted(mount):
            return None
        longest = min(self._window_seconds, MAX_HOLD_SECONDS)
        until = min(good_until, self._kept.noted_until(mount), now + longest)
        return CachedLookup(mount, ref(composed), now, until, is_unchanged)

    def shows(self, want: ImageRequest, composed: Composed) -> None:
        """Note that a client gets to know an entity tag, which it may ask for parts by.

        Args:
            want: what was wanted.
            composed: what it is told about.
        """
        tag = (want.reader.ref, want.reader.credentials, composed.representation.image.etag)
        self._retained[tag] = composed.version
        self._retained.move_to_end(tag)
        while len(self._retained) > MAX_RETAINED:
            self._retained.popitem(last=False)

    def supersede(self, base: BaseImage) -> None:
        """Note that a base image is not found any more: it stays for those who are reading it.

        Args:
            base: the image.
        """
        self._composed.forget(base)
        self._superseded.append((self._clock.seconds(), base))

    def forget_superseded(self) -> None:
        """Let go of base images that were superseded, once nobody has read them for a mount's window."""
        begun_before = self._clock.seconds() - self._window_seconds
        read = [version.base for version in self.mounts.versions()]
        for since, base in list(self._superseded):
            if since < begun_before and not any(base is other for other in read):
                self._superseded.remove((since, base))
                self._composed.forget(base)
                for tag in [tag for tag, version in self._retained.items() if version.base is base]:
                    del self._retained[tag]

    async def save_mounts(self) -> None:
        """Keep the mounts that have read since the last time, for a process that may follow this one."""
        await self._kept.save()

    async def _find(self, want: ImageRequest) -> Composed:
        composed = await self._find_one(want)
        if want.reading is not ReadMode.CONTINUING or await self._goes_on_with(want, composed.version):
            return composed
        return await self._find(want)  # another range of the same mount was faster, and had another version

    async def _goes_on_with(self, want: ImageRequest, version: Version) -> bool:
        """Whether a mount reads this version, as of now if it read none."""
        begun = self._being_read(want)
        return await self._kept.begins(want.reader, version) if begun is None else begun == version

    async def _find_one(self, want: ImageRequest) -> Composed:
        version = self._being_read(want) or await self._recalled(want)
        if version is None:
            return await self._compose_newest(want.reader)
        try:
            return await self._go_on(version)
        except Lost:
            if want.reading is not ReadMode.NAMED:
                raise
            return await self._compose_newest(want.reader)  # whose validators tell that it is another

    async def _compose_newest(self, reader: Reader) -> Composed:
        try:
            return await self._composed.get(await self._finder.newest(reader))
        except Lost:  # by the store, which is known only now: it is asked for anew
            return await self._composed.get(await self._finder.newest(reader))

    def _goes_on_until(self, version: Version) -> float:
        return inf if version.snapshot is None else self._snapshots.goes_on_until(version.snapshot)

    async def _go_on(self, version: Version) -> Composed:
        if version.snapshot is not None:
            await self._snapshots.keep(version.snapshot)
        return await self._composed.get(version)

    # Which version.

    def _being_read(self, want: ImageRequest) -> Version | None:
        """The version that the reader has a part of, if the request is for more of it."""
        if want.reading is ReadMode.NEWEST:
            return None
        reader = want.reader
        version = self.mounts.find(reader) if isinstance(reader.ref, ImageRef) else self.mounts.last(reader)
        return version if want.reading is ReadMode.CONTINUING else self._named(version, want)

    def _named(self, being_read: Version | None, want: ImageRequest) -> Version | None:
        """The version that a request names, as long as it may be seen."""
        version = being_read
        if version is None or not self._is_named(version, want):
            reader = want.reader
            tags = ((reader.ref, reader.credentials, etag) for etag in want.etags)
            version = next((self._retained[tag] for tag in tags if tag in self._retained), None)
        is_ended = version is not None and version.snapshot is not None and version.snapshot.tenure.ended
        return None if is_ended else version

    def _is_named(self, version: Version, want: ImageRequest) -> bool:
        composed = self._composed.known(version)
        return composed is not None and composed.is_named(want)

    def _may_be_remembered(self, want: ImageRequest) -> bool:
        """Whether another process, such as the one before this, may know what the reader goes on with."""
        reader = want.reader
        is_further = want.reading is not ReadMode.NEWEST
        return is_further and isinstance(reader.ref, ImageRef) and self.mounts.find(reader) is None

    async def _recalled(self, want: ImageRequest) -> Version | None:
        """The version that the reader was in the midst of, by what another process has saved."""
        if not self._may_be_remembered(want):
            return None
        reader = want.reader
        recalled = await self._kept.recall(reader)
        try:
            version = await self._restore(reader, recalled)
            if version is None or (
                want.reading is ReadMode.NAMED and not (await self._go_on(version)).is_named(want)
            ):
                return None
        except Lost:
            if want.reading is ReadMode.NAMED:
                return None
            raise
        if self.mounts.find(reader) is None:
            self._kept.learn(reader, version, recalled)
        return version

    async def _restore(self, reader: Reader, recalled: Recalled) -> Version | None:
        """The version that is remembered; what is known here does where none is, or none can be looked up."""
        known, remembered = self.mounts.last(reader), recalled.mount
        if remembered is None or (known is not None and is_of(remembered, known)):
            return known
        return await self._finder.remembered(reader, remembered)


def _keys(mount: Mount[Version]) -> tuple[bytes, ...]:
    snapshot = mount.version.snapshot
    return (mount.key,) if snapshot is None else (mount.key, snapshot.key)


def _too_slow(_: object, seconds: float) -> NoReturn:
    raise UpstreamTimeout(
        f"the image could not be made within {seconds:g} s; it is still being made", retry_after_seconds=1
    )
