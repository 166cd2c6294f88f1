"""The customization of an infra-env, fetched from assisted-service with two or three concurrent calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, FirstError, gatherResults

from image_service.core.images.customization import Customization
from image_service.core.images.reference import Kind

if TYPE_CHECKING:
    from image_service.core.images.reference import Credentials
    from image_service.server.assisted.responses import IgnitionConfig, InfraEnv

_WITH_RAMDISK = frozenset({Kind.MINIMAL_ISO, Kind.PXE_INITRD})


class AssistedApi(Protocol):
    """Calls assisted-service; ``is_revalidation`` if its answer to an earlier call is in use."""

    async def fetch_ignition(
        self,
        infra_env_id: str,
        discovery_iso_type: Kind | None,
        credentials: Credentials | None,
        *,
        is_revalidation: bool = False,
    ) -> IgnitionConfig:
        """Return the Ignition config of an infra-env."""

    async def fetch_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> InfraEnv:
        """Return the infra-env itself."""

    async def fetch_ramdisk(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> bytes | None:
        """Return the ramdisk of an infra-env, or None."""


async def fetch_customization(
    assisted: AssistedApi,
    infra_env_id: str,
    kind: Kind,
    credentials: Credentials | None,
    *,
    is_revalidation: bool = False,
) -> Customization:
    """Return the customization of an infra-env's image of one kind.

    Only ISOs and iPXE scripts have kernel arguments; scripts have nothing else. If one call fails, the others
    are canceled and its error is raised.
    """
    is_script = kind is Kind.IPXE_SCRIPT
    iso_type = kind if kind.is_iso else None
    fetch_ignition = partial(assisted.fetch_ignition, infra_env_id, iso_type, credentials)
    fetch_infra_env = partial(assisted.fetch_infra_env, infra_env_id, credentials)
    fetch_ramdisk = partial(assisted.fetch_ramdisk, infra_env_id, credentials)
    calls: list[Deferred[Any]] = [
        Deferred.fromCoroutine(fetch(is_revalidation=is_revalidation) if is_needed else _return_none())
        for fetch, is_needed in (
            (fetch_ignition, not is_script),
            (fetch_infra_env, kind.is_iso or is_script),
            (fetch_ramdisk, kind in _WITH_RAMDISK),
        )
    ]
    ignition: IgnitionConfig | None
    infra_env: InfraEnv | None
    ramdisk: bytes | None
    try:
        ignition, infra_env, ramdisk = await gatherResults(calls, consumeErrors=True)
    except FirstError as error:
        for call in calls:
            call.cancel()
        error.subFailure.raiseException()
    arguments = infra_env.kernel_arguments if infra_env else ()
    if ignition is None:
        return Customization(b"", arguments, None)
    return Customization(ignition.config, arguments, ignition.modified, ramdisk)


async def _return_none() -> None:
    pass
