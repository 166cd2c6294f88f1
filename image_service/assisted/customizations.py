"""What assisted-service says about an infra-env, from the two or three questions that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults

from image_service.images.customization import Customization
from image_service.images.reference import Kind

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from image_service.assisted.answers import Ignition, InfraEnv
    from image_service.images.reference import Credentials

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Third = TypeVar("_Third")
_WITH_RAMDISK = frozenset({Kind.MINIMAL_ISO, Kind.PXE_INITRD})


class Assisted(Protocol):
    """Who is asked."""

    async def ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> Ignition:
        """The infra-env's Ignition config."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """The infra-env itself."""

    async def ramdisk(self, infra_env_id: str, credentials: Credentials | None) -> bytes | None:
        """The infra-env's ramdisk."""


class Customizations:
    """Asks for customizations.

    Args:
        assisted: who is asked.
    """

    def __init__(self, assisted: Assisted) -> None:
        self._assisted = assisted

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Ask which image an infra-env is for.

        Args:
            infra_env_id: which.
            credentials: passed on.

        Returns:
            what it says about itself.

        Raises:
            ImageServiceError: as ``AssistedService`` does.
        """
        return await self._assisted.infra_env(infra_env_id, credentials)

    async def get(self, infra_env_id: str, kind: Kind, credentials: Credentials | None) -> Customization:
        """Ask for all that makes an infra-env's image of one kind, side by side.

        Args:
            infra_env_id: which.
            kind: an ISO, or the initrd for PXE; only ISOs have kernel arguments.
            credentials: passed on.

        Returns:
            everything that was asked for.

        Raises:
            ImageServiceError: one of the questions failed; the others are cancelled then.
        """
        assisted = self._assisted
        iso = kind if kind.is_iso else None
        ignition, infra_env, ramdisk = await _side_by_side(
            assisted.ignition(infra_env_id, iso, credentials),
            assisted.infra_env(infra_env_id, credentials) if iso else _do_nothing(),
            assisted.ramdisk(infra_env_id, credentials) if kind in _WITH_RAMDISK else _do_nothing(),
        )
        arguments = infra_env.kernel_arguments if infra_env else ()
        return Customization(ignition.config, arguments, ignition.modified, ramdisk)


async def _do_nothing() -> None:
    pass


async def _side_by_side(
    first: Coroutine[Any, Any, _First],
    second: Coroutine[Any, Any, _Second],
    third: Coroutine[Any, Any, _Third],
) -> tuple[_First, _Second, _Third]:
    """Run all at once; when one fails, the others are cancelled and the failure is that one's."""
    running: list[Deferred[Any]] = [Deferred.fromCoroutine(work) for work in (first, second, third)]
    try:
        one, two, three = await gatherResults(running, consumeErrors=True)
    except FirstError as failed:
        for deferred in running:
            deferred.cancel()
        failed.subFailure.raiseException()
    return one, two, three
