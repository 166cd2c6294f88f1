"""Boot images by reference and caller: made once, kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import attrs
from twisted.internet.defer import Deferred, fail, succeed

from image_service.errors import Unprocessable, UpstreamTimeout
from image_service.http.respond import Representation
from image_service.http.single_flight import SingleFlight
from image_service.images.reference import ArtifactRef, ImageRef, Kind

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.http.composer import Composer
    from image_service.images.reference import Credentials

OVERHEAD_BYTES = 48 * 1024
"""What an image costs beside its bytes, at most: most of it a key with credentials as long as a head."""
MAX_REFUSED = 1024
PATIENCE_SECONDS = 3
"""How long a request waits for its image: firmware gives up after 5 s, and must be told before that."""
HELD_BYTES = 256 * 1024 * 1024
"""What all kept images may hold in memory; the least recently used gives way."""

Ref: TypeAlias = ImageRef | ArtifactRef
Key: TypeAlias = "tuple[Ref, Credentials | None]"
"""Which image, and who asks."""


@attrs.frozen(eq=False)
class Kept:
    """A composed image and until when it is taken as current.

    Args:
        representation: what is served.
        ref: what it was made for; nothing left open.
        fresh_until: the clock's seconds.
    """

    representation: Representation
    ref: Ref
    fresh_until: float

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and all that is around them."""
        return self.representation.image.extents.literal_bytes + OVERHEAD_BYTES


@attrs.frozen(eq=False)
class _Refused:
    """What is wrong with a customization, and until when nobody asks whether it still is."""

    error: Unprocessable
    until: float


class BootImages:
    """Makes images and keeps the latest.

    Args:
        composer: makes them.
        clock: tells how old an answer is.
        ttl_seconds: how long assisted-service's answer is good.
    """

    def __init__(self, composer: Composer, clock: IReactorTime, ttl_seconds: float) -> None:
        self._composer = composer
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._held_bytes = 0
        self._refused: OrderedDict[Key, _Refused] = OrderedDict()
        self._making: SingleFlight[Key, Kept] = SingleFlight()

    def get(self, ref: Ref, credentials: Credentials | None) -> Deferred[Kept]:
        """Find or make an image.

        Args:
            ref: which.
            credentials: who asks; nobody gets what was made for other credentials.

        Returns:
            fires with the image, at once where a fresh one is kept; with UpstreamTimeout where it is not
            there after ``PATIENCE_SECONDS``. It is still being made then: asking again finds it.
        """
        key = (ref, credentials)
        kept = self.fresh(key)
        if kept is not None:
            return succeed(kept)
        refused = self._refused.get(key)
        if refused is not None and self._clock.seconds() < refused.until:
            return fail(refused.error)
        return self._join(key).addTimeout(PATIENCE_SECONDS, self._clock, _too_slow)

    def fresh(self, key: Key) -> Kept | None:
        """The image that may be served without asking assisted-service, if there is one."""
        kept = self._kept.get(key)
        if kept is None or self._clock.seconds() >= kept.fresh_until:
            return None
        self._kept.move_to_end(key)
        return kept

    def _join(self, key: Key) -> Deferred[Kept]:
        return self._making.join(key, lambda: self._make(key))

    async def _make(self, key: Key) -> Kept:
        """Make an image; what cannot be laid over its base is not tried again for a while."""
        try:
            made = await self._make_anew(key)
        except Unprocessable as error:
            self._refused[key] = _Refused(error, self._clock.seconds() + self._ttl_seconds)
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            raise
        return self._keep(key, made)

    async def _make_anew(self, key: Key) -> Kept:
        ref, credentials = key
        if isinstance(ref, ArtifactRef):
            return self._until_stale(Representation(self._composer.artifact(ref)), ref)
        if ref.kind is Kind.INITRD_ADDRSIZE:
            return await self._make_initrd_addrsize(ref, credentials)
        resolved = await self._composer.resolve(ref, credentials)
        return self._until_stale(Representation(await self._composer.image(resolved, credentials)), resolved)

    async def _make_initrd_addrsize(self, ref: ImageRef, credentials: Credentials | None) -> Kept:
        """About the very initrd that is served, and fresh for as long."""
        key = (attrs.evolve(ref, kind=Kind.PXE_INITRD), credentials)
        initrd = self.fresh(key) or await self._join(key)
        image = self._composer.initrd_addrsize(ref, initrd.representation.image)
        return Kept(Representation(image), ref, initrd.fresh_until)

    def _until_stale(self, representation: Representation, ref: Ref) -> Kept:
        return Kept(representation, ref, self._clock.seconds() + self._ttl_seconds)

    def _keep(self, key: Key, made: Kept) -> Kept:
        replaced = self._kept.pop(key, None)
        self._kept[key] = made
        self._held_bytes += made.held_bytes - (replaced.held_bytes if replaced else 0)
        while self._held_bytes > HELD_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._held_bytes -= oldest.held_bytes
        return made


def _too_slow(_: object, seconds: float) -> NoReturn:
    raise UpstreamTimeout(
        f"the image could not be made within {seconds:g} s; it is still being made", retry_after_seconds=1
    )
