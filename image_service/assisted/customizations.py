"""The customization of an infra-env, from two or three calls of assisted-service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults

from image_service.images.customization import Customization
from image_service.images.reference import Kind

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from image_service.assisted.responses import IgnitionConfig, InfraEnv
    from image_service.images.reference import Credentials

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Third = TypeVar("_Third")
_WITH_RAMDISK = frozenset({Kind.MINIMAL_ISO, Kind.PXE_INITRD})


class AssistedApi(Protocol):
    """The calls of `AssistedService`."""

    async def fetch_ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> IgnitionConfig:
        """Fetch the infra-env's Ignition config."""

    async def fetch_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Fetch the infra-env."""

    async def fetch_ramdisk(self, infra_env_id: str, credentials: Credentials | None) -> bytes | None:
        """Fetch the infra-env's ramdisk."""


class CustomizationFetcher:
    """Fetches customizations from `assisted`; raises ImageServiceError as `AssistedService` does."""

    def __init__(self, assisted: AssistedApi) -> None:
        self._assisted = assisted

    async def fetch_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Fetch the infra-env, which names its image."""
        return await self._assisted.fetch_infra_env(infra_env_id, credentials)

    async def fetch_customization(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None
    ) -> Customization:
        """Fetch all parts of a customization concurrently; a failure cancels the others.

        Only ISOs have kernel arguments; `kind` is an ISO, or the initrd for PXE.
        """
        assisted = self._assisted
        iso = kind if kind.is_iso else None
        ignition, infra_env, ramdisk = await _gather(
            assisted.fetch_ignition(infra_env_id, iso, credentials),
            assisted.fetch_infra_env(infra_env_id, credentials) if iso else _return_none(),
            assisted.fetch_ramdisk(infra_env_id, credentials) if kind in _WITH_RAMDISK else _return_none(),
        )
        arguments = infra_env.kernel_arguments if infra_env else ()
        return Customization(ignition.config, arguments, ignition.modified, ramdisk)


async def _return_none() -> None:
    pass


async def _gather(
    first: Coroutine[Any, Any, _First],
    second: Coroutine[Any, Any, _Second],
    third: Coroutine[Any, Any, _Third],
) -> tuple[_First, _Second, _Third]:
    """Run all concurrently; the first failure cancels the others and is raised."""
    running: list[Deferred[Any]] = [Deferred.fromCoroutine(work) for work in (first, second, third)]
    try:
        one, two, three = await gatherResults(running, consumeErrors=True)
    except FirstError as failed:
        for deferred in running:
            deferred.cancel()
        failed.subFailure.raiseException()
    return one, two, three
