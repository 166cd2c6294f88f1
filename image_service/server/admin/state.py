"""The state of the service as the administrative listener shows it, whichever processes have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from image_service.server.admin.links_api import LinkHandlers

Page: TypeAlias = tuple[bytes, str]
"""Content and its media type."""


class ServiceState(Protocol):
    """The state of all processes of the service; its methods raise Unavailable if none of them responds."""

    def unready_reason(self) -> Awaitable[str]:
        """Return why no image can be served; empty if some can."""

    def describe_impairment(self) -> Awaitable[str]:
        """Return what does not work although images can be served, in a line; empty if all does."""

    def render_metrics(self) -> Awaitable[Page]:
        """Return the page of metrics."""

    def render_images(self) -> Awaitable[str]:
        """Return the states of the base images as JSON."""


class ServingState(ServiceState, Protocol):
    """The state of all processes of a service that serves images."""

    def describe_status(self) -> Awaitable[Mapping[str, Any]]:
        """Return what works and what does not, as JSON: ``Status`` in `status_api`."""

    async def set_log_level(self, level: str) -> None:
        """Set the lowest level of the log, until the next start or reload."""

    def describe_base_address(self) -> Mapping[str, Any]:
        """Return which address URLs have, and which others may be chosen: ``BaseAddress`` in `status_api`."""

    async def choose_address(self, address: str | None) -> None:
        """Have the URLs of all processes begin with an address of this machine, also after a restart.

        None: that of the default route.

        Raises:
            Conflict: a setting decides.
            InvalidParameter: it is not an address of this machine.
        """

    async def follow_address(self) -> None:
        """Have the URLs of all processes begin with the chosen address, if this machine has it again."""

    def find_base_urls(self) -> Sequence[str]:
        """Return the URLs by which clients may reach the service, the present one first."""

    async def exchange_figures(
        self, replica_id: str, figures: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """Write what this replica does, and return all replicas: their id, figures and age in seconds.

        It is empty where there is no database that replicas share.
        """

    async def retry_image(self, version: str, architecture: str, image_type: str) -> bool:
        """Begin the next attempt of a base image at once; return False if no attempt is due.

        Args:
            version: its OS build.
            image_type: as in ``OS_IMAGES``.
        """

    @property
    def links(self) -> LinkHandlers:
        """Responds to the operations on short links."""
