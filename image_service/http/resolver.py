"""What a request leaves open, its infra-env says: which version, architecture and kind of image."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.errors import NotFound, Unavailable, UpstreamError, UpstreamTimeout
from image_service.images.reference import DEFAULT_ARCHITECTURE, ArtifactRef, ImageRef, Kind, Ref
from image_service.single_flight import SingleFlight

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.images.reference import Credentials

MAX_KNOWN = 4096
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


class InfraEnvs(Protocol):
    """Who knows infra-envs."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """What one says about itself."""


@attrs.frozen
class _Known:
    ref: ImageRef
    asked_at: float


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
        self._known: OrderedDict[tuple[ImageRef, Credentials | None], _Known] = OrderedDict()
        self._asking: SingleFlight[tuple[ImageRef, Credentials | None], ImageRef] = SingleFlight()

    def at_once(self, ref: Ref, credentials: Credentials | None) -> Ref | None:
        """Complete a reference without asking.

        Args:
            ref: as requested.
            credentials: who asks.

        Returns:
            a reference that leaves nothing open; None: somebody has to be asked.
        """
        if isinstance(ref, ArtifactRef) or _is_complete(ref):
            return ref
        known = self._known.get((ref, credentials))
        if known is None or self._clock.seconds() >= known.asked_at + self._ttl_seconds:
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
        if found is not None or isinstance(ref, ArtifactRef):
            return found or ref
        key = (ref, credentials)
        try:
            return await self._asking.join(key, lambda: self._ask(ref, credentials))
        except _FAILING:
            known = self._known.get(key)
            limit = self._ttl_seconds + self._grace_seconds
            if known is None or self._clock.seconds() >= known.asked_at + limit:
                raise
            return known.ref

    async def _ask(self, ref: ImageRef, credentials: Credentials | None) -> ImageRef:
        try:
            infra_env = await self._infra_envs.infra_env(ref.infra_env_id, credentials)
        except _FAILING:
            raise
        except Exception:
            self._known.pop((ref, credentials), None)
            raise
        version = ref.version or infra_env.openshift_version
        if version is None:
            raise NotFound("neither the request nor the infra-env names a version")
        architecture = ref.architecture or infra_env.architecture or DEFAULT_ARCHITECTURE
        kind = ref.kind or infra_env.kind or Kind.FULL_ISO
        resolved = ImageRef(ref.infra_env_id, version, architecture, kind)
        self._known[ref, credentials] = _Known(resolved, self._clock.seconds())
        self._known.move_to_end((ref, credentials))
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return resolved


def _is_complete(ref: ImageRef) -> bool:
    return ref.version is not None and ref.kind is not None and ref.architecture is not None
