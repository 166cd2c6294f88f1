"""Finds boot images for requests: of the newest version, or of the one that the reader is in the middle of.

    no validator, one range      a mount: the version that this reader is reading, if it is reading any; else
                                 the one that a HEAD has described just now
    If-Match, If-Range           the version that they name, if it is retained
    everything else              the newest version
    a pinned link                the version that it names, whatever the request's validators

Several processes may serve one reader in turn (see `mounts`). A mount whose version is lost, or has ended,
is refused for as long as it is in progress: it must not get bytes of another version. A request that starts
over, for the whole image or for a range at its beginning, gets the newest version, and so do the ranges
after it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from weakref import ref

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.common.concurrency.circuit_breaker import PAUSE_SECONDS
from image_service.common.concurrency.single_flight import SingleFlight, shielded
from image_service.core.errors import Unavailable, UpstreamTimeout
from image_service.server.assisted.caller import CALLER, Caller
from image_service.server.snapshots.lookups import CachedLookup, NewestLookup
from image_service.server.snapshots.mounts import Mount, Mounts, is_of
from image_service.server.snapshots.retention import Retention
from image_service.server.snapshots.storage.repository_access import READ, RETRY_AFTER_SECONDS
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.versions import ComposedVersion, ImageRequest, ReadMode, Version
from image_service.server.transport.admission.addresses import address_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.customization import Customization
    from image_service.core.images.reference import Credentials, Reader
    from image_service.server.snapshots.image_cache import BootImageCache
    from image_service.server.snapshots.resolver import VersionFinder
    from image_service.server.snapshots.snapshots import Snapshots
    from image_service.server.snapshots.storage.repository import StoredMount

TIMEOUT_SECONDS = 2.5
"""How long a request waits for its image: firmware gives up after 5 s, and must be answered before 3."""
ANSWER_SECONDS = 2.75
"""How long it waits for its image, and until its mount is stored, together."""
STORE_SECONDS = 2.0
"""How long mounts wait until snapshots are stored that were in memory only; it is tried again later."""
LAST_SAVE_SECONDS = 8.0
"""How long the end of the process waits for the store: of the 30 s before SIGKILL, clients may take 25."""
MAX_LOOKUP_SECONDS = 1.0
"""How long a lookup is used. Meanwhile a range does not count its reader among the latest ones, and a HEAD
does not notice that a version or an infra-env now names another base image."""

CACHES = ("images", "answers", "snapshots", "mounts", "versions", "infra-envs", "refusals")
"""What is cached of images, by the values of the metric's label."""

CustomizedBase: TypeAlias = "tuple[BaseImage, Customization]"
"""A base image, and what assisted-service says about an infra-env."""


class ImageFinder:
    """Finds images, and has them made."""

    def __init__(
        self,
        finder: VersionFinder,
        snapshots: Snapshots,
        mounts: Mounts,
        cache: BootImageCache,
        clock: IReactorTime,
    ) -> None:
        self._finder = finder
        self.snapshots = snapshots
        self.mounts = mounts
        self.cache = cache
        self._clock = clock
        self.retention = Retention(mounts, cache, clock)
        self._started_at = clock.seconds()
        self._storing: SingleFlight[None, None] = SingleFlight()

    def cache_bytes(self) -> Mapping[str, int]:
        """Return what each of `CACHES` takes in memory."""
        snapshots, resolver = self.snapshots, self._finder.resolver
        held = (
            self.cache.held_bytes,
            snapshots.answers_bytes,
            snapshots.cache.held_bytes,
            self.mounts.cache.held_bytes,
            self.retention.held_bytes,
            resolver.held_bytes,
            snapshots.refusals.held_bytes + resolver.refusals.held_bytes + self.cache.refused_bytes,
        )
        return dict(zip(CACHES, held, strict=True))

    def get_cached_image(self, request: ImageRequest) -> ComposedVersion | None:
        """Return the image if it is composed and still valid; None if the caller must await `get`."""
        version = self._find_known(request)
        if version is None:
            is_pinned = request.reader.pin is not None
            if is_pinned or self._may_be_stored(request) or self.mounts.is_lost(request.reader):
                return None
            version = self._finder.get_cached_version(request.reader)
        elif self._valid_until(version) <= self._clock.seconds():
            return None
        return None if version is None else self.cache.get_cached_composed(version)

    def get(self, request: ImageRequest, request_id: str = "") -> Deferred[ComposedVersion]:
        """Find or make the image; log lines of calls to assisted-service name the request.

        Returns:
            fires with the image; with UpstreamTimeout after `TIMEOUT_SECONDS`: the image is still being made,
            and a retry finds it.
        """
        found = Deferred.fromCoroutine(self._get_for_caller(request, request_id))
        return shielded(found).addTimeout(TIMEOUT_SECONDS, self._clock, _raise_timeout)

    def get_customization(self, reader: Reader, request_id: str = "") -> Deferred[CustomizedBase]:
        """Return the newest answer about a reader's infra-env, as validated as an image's; see `get`."""
        found = Deferred.fromCoroutine(self._get_customization(reader, request_id))
        return shielded(found).addTimeout(TIMEOUT_SECONDS, self._clock, _raise_timeout)

    def deadline(self) -> float:
        """Return until when a request that comes now is answered or refused, in seconds of the clock."""
        return self._clock.seconds() + ANSWER_SECONDS

    def record_mount(self, request: ImageRequest, composed: ComposedVersion) -> Mount:
        """Record that a response with content starts.

        Returns:
            the reader's mount, for ``mounts.end_response``. Nothing may be sent before `until_saved`.
        """
        self.retention.retain(request, composed)
        return self.mounts.start_response(request.reader, composed.version)

    async def save(self) -> bool:
        """Store the mounts in progress, and those of their snapshots that are in memory only.

        Returns:
            False if one was not stored.
        """
        is_saved = await self.mounts.save()
        snapshots = {version.snapshot for version in self.mounts.versions() if version.snapshot is not None}
        unstored = [each for each in snapshots if each.is_newest and not each.is_stored]
        if unstored:
            storing = self._storing.join(None, lambda: self.snapshots.store_again(unstored))
            # Another process may have a lock, while it waits for assisted-service: the work goes on then.
            await storing.addTimeout(STORE_SECONDS, self._clock, lambda *_: None)
            is_saved = await self.mounts.save() and all(each.is_stored for each in unstored)
        return is_saved

    async def save_at_last(self) -> None:
        """Store the same before the process ends; a store that fails is tried once again."""
        saving = Deferred.fromCoroutine(self._save_twice())
        await saving.addTimeout(LAST_SAVE_SECONDS, self._clock, lambda *_: None)

    async def _save_twice(self) -> None:
        if not await self.save() and any(self.snapshots.store_failing.values()):
            await deferLater(self._clock, PAUSE_SECONDS)
            await self.save()

    def until_saved(self, mount: Mount, deadline: float) -> Deferred[Any] | None:
        """Return a Deferred that fires when other processes can see a mount; None: they can.

        It fails with Unavailable at the deadline: the response has ended then, and the mount is still stored.
        """
        if mount.saving is None:
            return None
        left_seconds = max(0.0, deadline - self._clock.seconds())
        saved = shielded(mount.saving).addTimeout(left_seconds, self._clock, _raise_unsaved)
        return saved.addErrback(self._end_unsaved, mount)

    def look_up(self, reader: Reader, mount: Mount, now: float) -> CachedLookup | None:
        """Record that a reader reads on, and look up what, if nothing has to be waited for.

        Args:
            reader: the client, whose request has no validator.
            mount: from ``record_mount``, for the same reader.
            now: the clock's seconds.

        Returns:
            what `get_cached_image` returns too, and how long that is valid. None: the mount is over, or the
            caller must await `get`.
        """
        version = mount.version
        is_unchanged = self.mounts.watch(mount)  # first: it sees what changes from here on
        valid_until = self._valid_until(version)
        composed = self.cache.get_cached_composed(version)
        if now >= valid_until or composed is None:
            return None
        overdue_at = self.mounts.touch(reader, mount)
        if overdue_at is None:
            return None
        longest = min(self.mounts.window_seconds, MAX_LOOKUP_SECONDS)
        until = min(valid_until, overdue_at, now + longest)
        return CachedLookup(ref(composed), now, until, is_unchanged, mount)

    def look_up_newest(self, request: ImageRequest, now: float) -> NewestLookup | None:
        """Look up the newest version, for a client that learns its entity tag.

        Returns:
            what `get_cached_image` returns too, and until when; None: the caller must await `get`.
        """
        composed = self.get_cached_image(request)
        if composed is None:
            return None
        self.retention.announce(request, composed)
        snapshot, until = composed.version.snapshot, now + MAX_LOOKUP_SECONDS
        if snapshot is None:
            return NewestLookup(ref(composed), now, until, lambda: True, None)
        is_unchanged = self.snapshots.watch(snapshot)  # first: it sees what changes from here on
        until = min(until, self.snapshots.newest_until(snapshot))
        return NewestLookup(ref(composed), now, until, is_unchanged, snapshot)

    async def _get_for_caller(self, request: ImageRequest, request_id: str) -> ComposedVersion:
        now = self._clock.seconds()
        CALLER.set(Caller(address_group(request.reader.address), now, request_id))
        return await self._get(request, now + TIMEOUT_SECONDS)

    async def _get_customization(self, reader: Reader, request_id: str) -> CustomizedBase:
        CALLER.set(Caller(address_group(reader.address), self._clock.seconds(), request_id))
        version = await self._finder.get(reader)
        if version.snapshot is not None:
            found = await self.snapshots.load(version.snapshot)
            if found is not None:
                return version.base, found
        raise VersionLost

    async def _get(self, request: ImageRequest, deadline: float) -> ComposedVersion:
        while True:
            composed = await self._get_once(request, deadline)
            is_resumed = request.mode is ReadMode.RESUME and request.reader.pin is None
            if not is_resumed or await self._claim(request, composed.version):
                return composed
            # Another range of this mount has started another version.

    async def _claim(self, request: ImageRequest, version: Version) -> bool:
        """Return True if the reader reads this version; from now on, if it reads none."""
        known = self._find_known(request)
        return (
            await self.mounts.start_unless_taken(request.reader, version)
            if known is None
            else known == version
        )

    async def _get_once(self, request: ImageRequest, deadline: float) -> ComposedVersion:
        reader, is_lost = request.reader, self.mounts.is_lost(request.reader)
        if reader.pin is not None:
            return await self._continue(
                await self._finder.find_pinned(reader, reader.pin), reader.credentials
            )
        try:
            version = self._find_known(request) or await self._find_stored(request)
            if version is None and request.mode is ReadMode.RESUME and reader.ref.needs_customization:
                version = self.retention.find_announced(reader)
            if version is not None:
                return await self._continue(version, reader.credentials)
        except VersionLost:
            if request.mode is ReadMode.RESUME and not request.starts_over:
                raise
            is_lost = True
        composed = await self._get_newest(reader)
        if is_lost and request.mode is not ReadMode.NAMED:  # else its validators are others
            if self._clock.seconds() >= deadline:  # it has got an error, and may go on with what it has read
                raise VersionLost
            await self.mounts.start_over(reader, composed.version)
        return composed

    async def _get_newest(self, reader: Reader) -> ComposedVersion:
        try:
            return await self.cache.get(await self._finder.get(reader))
        except VersionLost:  # the repository has lost it, which is known only now: it is asked for again
            return await self.cache.get(await self._finder.get(reader))

    async def _continue(self, version: Version, credentials: Credentials | None) -> ComposedVersion:
        if version.snapshot is not None:
            await self.snapshots.revalidate(version.snapshot, credentials)
        return await self.cache.get(version)

    def _valid_until(self, version: Version) -> float:
        return inf if version.snapshot is None else self.snapshots.valid_until(version.snapshot)

    def _end_unsaved(self, failure: Failure, mount: Mount) -> Failure:
        self.mounts.end_response(mount)
        return failure

    # Which version.

    def _find_known(self, request: ImageRequest) -> Version | None:
        """Return the version that the reader has a part of, if the request is for more of it."""
        reader = request.reader
        if reader.pin is not None:
            return self.mounts.find(reader)
        if request.mode is ReadMode.NEWEST:
            return None
        version = (
            self.mounts.find(reader) if reader.ref.needs_customization else self.mounts.find_local(reader)
        )
        return version if request.mode is ReadMode.RESUME else self._find_named(version, request)

    def _find_named(self, version: Version | None, request: ImageRequest) -> Version | None:
        """Return the version that validators name: the one that is being read, or one that is retained."""
        composed = None if version is None else self.cache.get_cached_composed(version)
        if composed is None or not composed.is_named_by(request):
            version = self.retention.find(request)
        is_ended = version is not None and version.snapshot is not None and version.snapshot.is_ended
        return None if is_ended else version

    def _may_be_stored(self, request: ImageRequest) -> bool:
        """Return True if another process, or the one before this, may know what the reader reads."""
        reader, is_further = request.reader, request.mode is not ReadMode.NEWEST
        return is_further and reader.ref.needs_customization and self.mounts.find(reader) is None

    async def _find_stored(self, request: ImageRequest) -> Version | None:
        """Return the version that the reader is in the middle of, by what is stored."""
        if not self._may_be_stored(request):
            return None
        reader, is_named = request.reader, request.mode is ReadMode.NAMED
        reader_counter, stored = await self.mounts.find_stored(reader)
        try:
            version = await self._restore(reader, stored)
            if version is None:
                self._check_mounts_are_read(request)
                return None
            if is_named and not (await self._continue(version, reader.credentials)).is_named_by(request):
                return None
        except VersionLost:
            if is_named:
                return None
            self._check_store_is_read()
            raise
        if self.mounts.find(reader) is None:
            self.mounts.adopt(reader, version, reader_counter, stored)
        return version

    def _check_mounts_are_read(self, request: ImageRequest) -> None:
        """Refuse a range that may be of a mount of a superseded base image, which cannot be read now.

        Else the newest version would be another one. Machines read the beginning of an image again, too: for
        a mount's window after its start, this process cannot tell a reader that begins from one that goes on.
        """
        may_start_over = self._clock.seconds() > self._started_at + self.mounts.window_seconds
        is_further = request.mode is ReadMode.RESUME and not (request.starts_over and may_start_over)
        if is_further and self.retention.has_superseded:
            self._check_store_is_read()

    def _check_store_is_read(self) -> None:
        """Refuse a range while what it is of may be stored, but cannot be read."""
        if self.snapshots.store_failing[READ]:
            raise Unavailable(
                "what this client is reading cannot be read from the store now",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    async def _restore(self, reader: Reader, stored: StoredMount | None) -> Version | None:
        """Return the stored version; the one that is known here if there is none, or none can be read.

        While the repository failed, each process served its own; what another has in memory cannot be read.
        """
        known = self.mounts.find_local(reader)
        if stored is None or (known is not None and (is_of(stored, known) or stored.generation < 0)):
            return known
        return await self._finder.find_stored(reader, stored)


def _raise_unsaved(*_: object) -> NoReturn:
    raise Unavailable("other replicas cannot learn in time who reads this image", retry_after_seconds=1)


def _raise_timeout(_: object, seconds: float) -> NoReturn:
    raise UpstreamTimeout(
        f"the image could not be made within {seconds:g} s; it is still being made", retry_after_seconds=1
    )
