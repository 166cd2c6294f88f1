"""From a reference to what is served: base image and customization found, composed once, kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar

import attrs
from twisted.internet.defer import Deferred, FirstError, fail, gatherResults, succeed

from image_service.errors import NotFound, Unprocessable, UpstreamTimeout
from image_service.http.respond import Representation
from image_service.http.single_flight import SingleFlight
from image_service.images.compose import compose
from image_service.images.customization import Customization
from image_service.images.reference import DEFAULT_ARCHITECTURE, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import datetime

    from twisted.internet.interfaces import IReactorTime

    from image_service.images.base import BaseImage
    from image_service.images.boot_image import BootImage
    from image_service.images.reference import Credentials, ImageRef

THREAD_BYTES = 128 * 1024
"""A config larger than this is composed in a thread: one of a MB takes half a second to compress."""
OVERHEAD_BYTES = 48 * 1024
"""What an image costs beside its bytes, at most: most of it a key with credentials as long as a head."""
MAX_REFUSED = 1024
PATIENCE_SECONDS = 3
"""How long a request waits for its image: firmware gives up after 5 s, and must be told before that."""
HELD_BYTES = 256 * 1024 * 1024
"""What all kept images may hold in memory; the least recently used gives way."""

_First = TypeVar("_First")
_Second = TypeVar("_Second")
Key: TypeAlias = "tuple[ImageRef, Credentials | None]"
"""Which image, and who asks."""


class Ignition(Protocol):
    """An Ignition config as assisted-service sent it."""

    @property
    def config(self) -> bytes:
        """JSON."""

    @property
    def modified(self) -> datetime | None:
        """Its date, UTC, if it has one."""


class InfraEnv(Protocol):
    """What an infra-env says about its image."""

    @property
    def kernel_arguments(self) -> tuple[str, ...]:
        """To append."""

    @property
    def openshift_version(self) -> str | None:
        """Its own, if it has one."""

    @property
    def kind(self) -> Kind | None:
        """What it is downloaded as."""

    @property
    def architecture(self) -> str | None:
        """RPM architecture name."""


class Assisted(Protocol):
    """Where customizations come from."""

    async def ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> Ignition:
        """The infra-env's Ignition config."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """The infra-env itself."""


class Catalog(Protocol):
    """Where base images come from."""

    def find(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """The base image, ready to serve; raises where there is none."""


@attrs.frozen(eq=False)
class Kept:
    """A composed image and until when it is taken as current.

    Args:
        representation: what is served.
        kind: what it was made as.
        fresh_until: the clock's seconds.
    """

    representation: Representation
    kind: Kind
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
    """Composes images and keeps the latest.

    Args:
        catalog: base images.
        assisted: customizations.
        clock: tells how old an answer is.
        in_thread: runs a composition that takes a while.
        ttl_seconds: how long assisted-service's answer is good.
    """

    def __init__(
        self,
        catalog: Catalog,
        assisted: Assisted,
        clock: IReactorTime,
        in_thread: Callable[[Callable[[], BootImage]], Awaitable[BootImage]],
        ttl_seconds: float,
    ) -> None:
        self._catalog = catalog
        self._assisted = assisted
        self._clock = clock
        self._in_thread = in_thread
        self._ttl_seconds = ttl_seconds
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._held_bytes = 0
        self._refused: OrderedDict[Key, _Refused] = OrderedDict()
        self._making: SingleFlight[Key, Kept] = SingleFlight()

    def get(self, ref: ImageRef, credentials: Credentials | None) -> Deferred[Kept]:
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
        made = self._making.join(key, lambda: self._make(key))
        return made.addTimeout(PATIENCE_SECONDS, self._clock, _too_slow)

    def fresh(self, key: Key) -> Kept | None:
        """The image that may be served without asking assisted-service, if there is one."""
        kept = self._kept.get(key)
        if kept is None or self._clock.seconds() >= kept.fresh_until:
            return None
        self._kept.move_to_end(key)
        return kept

    async def _make(self, key: Key) -> Kept:
        """Make an image; what cannot be laid over its base is not tried again for a while."""
        try:
            return await self._make_anew(key)
        except Unprocessable as error:
            self._refused[key] = _Refused(error, self._clock.seconds() + self._ttl_seconds)
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            raise

    async def _make_anew(self, key: Key) -> Kept:
        ref, credentials = key
        if ref.version is None or ref.kind is None or ref.architecture is None:
            infra_env = await self._assisted.infra_env(ref.infra_env_id, credentials)
            base, kind = self._find_base(ref, infra_env)
            ignition = await self._assisted.ignition(ref.infra_env_id, kind, credentials)
        else:
            kind = ref.kind
            base = self._catalog.find(ref.version, ref.architecture, kind)
            infra_env, ignition = await _both(
                self._assisted.infra_env(ref.infra_env_id, credentials),
                self._assisted.ignition(ref.infra_env_id, kind, credentials),
            )
        customization = Customization(ignition.config, infra_env.kernel_arguments, ignition.modified)
        image = await self._compose(base, customization, _file_name(ref, base, kind))
        return self._keep(key, Kept(Representation(image), kind, self._clock.seconds() + self._ttl_seconds))

    def _find_base(self, ref: ImageRef, infra_env: InfraEnv) -> tuple[BaseImage, Kind]:
        """The base of a request that leaves what to the infra-env."""
        version = ref.version or infra_env.openshift_version
        if version is None:
            raise NotFound("neither the request nor the infra-env names a version")
        architecture = ref.architecture or infra_env.architecture or DEFAULT_ARCHITECTURE
        kind = ref.kind or infra_env.kind or Kind.FULL_ISO
        return self._catalog.find(version, architecture, kind), kind

    async def _compose(self, base: BaseImage, customization: Customization, file_name: str) -> BootImage:
        def work() -> BootImage:
            return compose(base, customization, file_name)

        return await self._in_thread(work) if len(customization.ignition) > THREAD_BYTES else work()

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


async def _both(
    first: Coroutine[Any, Any, _First], second: Coroutine[Any, Any, _Second]
) -> tuple[_First, _Second]:
    """Run two side by side; when one fails, the other is cancelled and the failure is that one's."""
    running: list[Deferred[Any]] = [Deferred.fromCoroutine(first), Deferred.fromCoroutine(second)]
    try:
        one, other = await gatherResults(running, consumeErrors=True)
    except FirstError as failed:
        for deferred in running:
            deferred.cancel()
        failed.subFailure.raiseException()
    return one, other


def _file_name(ref: ImageRef, base: BaseImage, kind: Kind) -> str:
    if kind is Kind.DISCONNECTED_ISO:
        return f"agent-ove.{base.architecture}.iso"
    return f"{ref.infra_env_id}-discovery.iso"
