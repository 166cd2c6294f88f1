"""Versions that clients may ask for again: by entity tags, after a HEAD, or over a replaced base image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from image_service.common.concurrency.lru import LruCache
from image_service.core.images.reference import Ref, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import Reader, ReaderKey
    from image_service.server.snapshots.image_cache import BootImageCache
    from image_service.server.snapshots.mounts import Mounts
    from image_service.server.snapshots.versions import ComposedVersion, ImageRequest, Version

MAX_RETAINED = 4096
"""Versions that can be found by their entity tags, and clients that have learned of one by HEAD."""
ANNOUNCED_SECONDS = 10.0
"""How long after its HEAD a client begins to read the version that this described: it knows the size."""

_Tag: TypeAlias = "tuple[Ref, bytes | None, str]"
"""A reference, the digest of the credentials, and an entity tag."""


class SupersededBaseStore(Protocol):
    """Keeps the files of superseded base images."""

    @property
    def is_opening(self) -> bool:
        """True while some are being opened, or it is not known yet whether they are superseded."""

    def keeps(self, base: BaseImage) -> bool:
        """Return True if mounts that name its digest find this base image."""

    def record_mounts(self, mounts: Mapping[str, int]) -> None:
        """Take over how many stored mounts read each base image, by digest."""

    def release(self, base: BaseImage) -> None:
        """Drop a base image that no mount reads any more."""


class Retention:
    """Retained versions, and superseded base images."""

    def __init__(self, mounts: Mounts, cache: BootImageCache, clock: IReactorTime) -> None:
        self._mounts = mounts
        self._cache = cache
        self._clock = clock
        self._retained: LruCache[_Tag, Version] = LruCache(MAX_RETAINED)
        self._announced: LruCache[ReaderKey, tuple[Version, float]] = LruCache(MAX_RETAINED)
        self._superseded: list[tuple[float, BaseImage]] = []
        self.bases: SupersededBaseStore | None = None
        """What keeps the files of superseded base images; None: nothing does."""

    @property
    def held_bytes(self) -> int:
        """What retained versions take in memory, about."""
        return self._retained.held_bytes + self._announced.held_bytes

    @property
    def has_superseded(self) -> bool:
        """True if mounts may read a base image that another one has replaced."""
        return bool(self._superseded) or (self.bases is not None and self.bases.is_opening)

    def retain(self, request: ImageRequest, composed: ComposedVersion) -> None:
        """Make a version findable by its entity tag, which a client is about to get."""
        reader = request.reader
        tag = (reader.ref, digest_of(reader.credentials), composed.representation.image.etag)
        self._retained[tag] = composed.version

    def find(self, request: ImageRequest) -> Version | None:
        """Return the version that an entity tag of the request names."""
        reader = request.reader
        tags = ((reader.ref, digest_of(reader.credentials), etag) for etag in request.etags)
        return next((found for tag in tags if (found := self._retained.peek(tag))), None)

    def announce(self, request: ImageRequest, composed: ComposedVersion) -> None:
        """Retain a version that a client learns of by HEAD."""
        self.retain(request, composed)
        self._announced[request.reader.key] = composed.version, self._clock.seconds()

    def find_announced(self, reader: Reader) -> Version | None:
        """Return the version that a client has learned of just now, and may begin to read."""
        found = self._announced.peek(reader.key)
        if found is None:
            return None
        version, at = found
        is_ended = version.snapshot is not None and version.snapshot.is_ended
        longest = min(ANNOUNCED_SECONDS, self._mounts.window_seconds)
        return None if is_ended or self._clock.seconds() > at + longest else version

    def supersede(self, base: BaseImage) -> None:
        """Record that the catalog has replaced a base image: it stays for clients that are reading it."""
        self._cache.forget(base)
        self._superseded.append((self._clock.seconds(), base))

    async def release_superseded(self) -> None:
        """Drop superseded base images that no client, here or at a replica, has read for a mount's window."""
        stored = await self._mounts.count_stored() if self.has_superseded else None
        if stored is None:
            return
        if self.bases is not None:
            self.bases.record_mounts(stored)
        started_before = self._clock.seconds() - self._mounts.window_seconds
        read = [version.base for version in self._mounts.versions()]
        for since, base in list(self._superseded):
            is_named = base.sha256 in stored and (self.bases is None or self.bases.keeps(base))
            is_read = is_named or any(base is other for other in read)
            if since < started_before and not is_read:
                self._superseded.remove((since, base))
                if self.bases is not None:
                    self.bases.release(base)
                self._cache.forget(base)
                for tag in [tag for tag, version in self._retained.items() if version.base is base]:
                    self._retained.pop(tag)
                for key in [key for key, (version, _) in self._announced.items() if version.base is base]:
                    self._announced.pop(key)
