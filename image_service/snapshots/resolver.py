"""What a request leaves open, its infra-env says: which version, architecture and kind of image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from image_service.concurrency.lru import LruCache
from image_service.concurrency.negative_cache import NegativeCache
from image_service.concurrency.single_flight import SingleFlight
from image_service.errors import NotFound, Unavailable, UpstreamError, UpstreamTimeout
from image_service.images.reference import DEFAULT_ARCHITECTURE, ImageRef, Kind, Ref

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.images.reference import Credentials

MAX_KNOWN = 4096
MAX_ASKING = 4096
"""References that are asked for at once; beyond that is more than can be answered in time."""
PATIENCE_SECONDS = 1.0
"""How long a request waits for an answer where an older one would do."""
RETRY_SECONDS = 5.0
"""Between two attempts to ask where the first failed and an older answer does."""
_FAILING = (UpstreamError, UpstreamTimeout, Unavailable)


class InfraEnv(Protocol):
    """What an infra-env says about its image."""

    @property
    def openshift_version(self) -> str | None:
        """Its own, if it has one."""

    @property
    def kind(self) -> Kind | None:
        """What it is downloaded as."""

    @property
    def architecture(self) -> str | None:
        """RPM architecture name."""

    @property
    def said_at(self) -> float | None:
        """When it said so, to another process; None: just now."""


class InfraEnvs(Protocol):
    """Who knows infra-envs."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """What one says about itself."""


_Asker: TypeAlias = "tuple[ImageRef, Credentials | None]"


@attrs.define
class _Known:
    """What was answered, when, and until when it does because asking has failed."""

    ref: ImageRef
    asked_at: float
    retry_at: float = 0.0


class Resolver:
    """Completes references.

    Args:
        infra_envs: who is asked.
        clock: tells the time.
        ttl_seconds: how long an answer is good.
        grace_seconds: how long an older one is taken while asking fails.
    """

    def __init__(
        self, infra_envs: InfraEnvs, clock: IReactorTime, ttl_seconds: float, grace_seconds: float
    ) -> None:
        self._infra_envs = infra_envs
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._grace_seconds = grace_seconds
        self._known: LruCache[_Asker, _Known] = LruCache(MAX_KNOWN)
        self._absences: NegativeCache[_Asker] = NegativeCache(clock)
        self._asking: SingleFlight[_Asker, ImageRef] = SingleFlight(MAX_ASKING)

    def at_once(self, ref: Ref, credentials: Credentials | None) -> Ref | None:
        """Complete a reference without asking.

        Args:
            ref: as requested.
            credentials: who asks.

        Returns:
            a reference that leaves nothing open; None: somebody has to be asked.
        """
        if not ref.needs_customization or is_complete(ref):
            return ref
        known = self._known.peek((ref, credentials))
        if known is None or self._clock.seconds() >= max(known.asked_at + self._ttl_seconds, known.retry_at):
            return None
        return known.ref

    async def resolve(self, ref: Ref, credentials: Credentials | None) -> Ref:
        """Complete a reference.

        Args:
            ref: as requested.
            credentials: who asks.

        Returns:
            a reference that leaves nothing open.

        Raises:
            ImageServiceError: nobody says which version, or the infra-env cannot be had.
        """
        found = self.at_once(ref, credentials)
        if found is not None or not ref.needs_customization:
            return found or ref
        asker = (ref, credentials)
        self._absences.check(asker)
        asking = self._asking.join(asker, lambda: self._ask(asker))
        older = self._older(asker)
        if older is None:
            return await asking
        return await asking.addTimeout(PATIENCE_SECONDS, self._clock, lambda *_: older.ref)

    def _older(self, asker: _Asker) -> _Known | None:
        """An answer that does while there is no other."""
        known = self._known.peek(asker)
        limit_seconds = self._ttl_seconds + self._grace_seconds
        if known is None or self._clock.seconds() >= known.asked_at + limit_seconds:
            return None
        return known

    async def _ask(self, asker: _Asker) -> ImageRef:
        ref, credentials = asker
        try:
            infra_env = await self._infra_envs.infra_env(ref.infra_env_id, credentials)
        except _FAILING:
            older = self._older(asker)
            if older is None:
                raise
            older.retry_at = self._clock.seconds() + RETRY_SECONDS
            return older.ref
        except NotFound as error:
            self._absences.add(asker, error)
            self._known.pop(asker)
            raise
        except Exception:
            self._known.pop(asker)
            raise
        said_at = self._clock.seconds() if infra_env.said_at is None else infra_env.said_at
        known = self._known[asker] = _Known(_complete(ref, infra_env), said_at)
        return known.ref


def _complete(ref: ImageRef, infra_env: InfraEnv) -> ImageRef:
    version = ref.version or infra_env.openshift_version
    if version is None:
        raise NotFound("neither the request nor the infra-env names a version")
    architecture = ref.architecture or infra_env.architecture or DEFAULT_ARCHITECTURE
    return ImageRef(ref.infra_env_id, version, architecture, ref.kind or infra_env.kind or Kind.FULL_ISO)


def is_complete(ref: ImageRef) -> bool:
    """Tell whether a reference leaves nothing open.

    Args:
        ref: as requested.
    """
    return ref.version is not None and ref.kind is not None and ref.architecture is not None
