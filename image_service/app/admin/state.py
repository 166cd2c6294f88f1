"""The state of one process: for its probes, and for the administrative listener."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.errors import StoreFailed, UnknownBaseImage
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.status import describe_unready, render_statuses
from image_service.server.observability.log import set_level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.app.admin.base_url import BaseUrl
    from image_service.app.admin.process_status import ProcessStatus, StatusDocument
    from image_service.common.database.monitor import DatabaseMonitor
    from image_service.server.admin.links_api import LinkHandlers
    from image_service.server.admin.state import Page
    from image_service.server.catalog.catalog import Catalog
    from image_service.server.observability.metrics import Metrics
    from image_service.server.snapshots.replicas.figures import FigureExchange
    from image_service.server.transport.listeners import Listeners


@attrs.frozen
class ProcessState:
    """The `ServingState` of a service of one process, and of each serving process."""

    _catalog: Catalog
    _listeners: Listeners
    _metrics: Metrics
    _status: ProcessStatus
    links: LinkHandlers
    _base_url: BaseUrl
    _database: DatabaseMonitor | None = None  # that replicas share
    _figures: FigureExchange | None = None  # of replicas, in that database

    @property
    def unready(self) -> str:
        """The reason why no image can be served; empty if some can."""
        return self._describe_unready(is_public=False)

    @property
    def public_unready(self) -> str:
        """The same for everybody, where those who run the service have a listener of their own."""
        return self._describe_unready(is_public=True)

    def _describe_unready(self, *, is_public: bool) -> str:
        if self._listeners.shutting_down:
            return "this service is shutting down"
        if self._database is not None and not self._database.was_reached:
            return "the database was not reached yet; see the log"
        return (
            "" if self._catalog.is_ready else describe_unready(self._catalog.statuses(), is_public=is_public)
        )

    @property
    def impairment(self) -> str:
        """The parts that do not work although images can be served; empty if all do."""
        seconds = self._database.failing_seconds if self._database is not None else None
        return "" if seconds is None else f"database: unreachable for {seconds:.0f} s; see the log"

    @property
    def images(self) -> bytes:
        """The states of the base images as JSON."""
        return render_statuses(self._catalog.statuses(), self._catalog.superseded.describe())

    async def retry_image(self, version: str, architecture: str, image_type: str) -> bool:
        """See `ServingState`."""
        with suppress(UnknownBaseImage, ValueError):
            return self._catalog.retry_now(version, architecture, Kind(image_type))
        return False

    async def unready_reason(self) -> str:
        """See `ServiceState`."""
        return self.unready

    async def describe_impairment(self) -> str:
        """See `ServiceState`."""
        return self.impairment

    async def render_metrics(self) -> Page:
        """See `ServiceState`."""
        return self._metrics.render()

    async def render_images(self) -> str:
        """See `ServiceState`."""
        return self.images.decode()

    async def find_family(self, version: str, architecture: str) -> str | None:
        """Return the name of the family of a full ISO; None if it is not known."""
        return self._catalog.find_family(version, architecture)

    async def describe_status(self) -> StatusDocument:
        """See `ServingState`."""
        return self._status.describe(self.unready, self.impairment)

    async def set_log_level(self, level: str) -> None:
        """See `ServingState`."""
        set_level(level)

    def describe_base_address(self) -> Mapping[str, Any]:
        """See `ServingState`."""
        return self._base_url.describe()

    async def choose_address(self, address: str | None) -> None:
        """See `ServingState`."""
        await self._base_url.choose(address)

    async def follow_address(self) -> None:
        """See `ServingState`."""
        self._base_url.follow()

    def find_base_urls(self) -> Sequence[str]:
        """See `ServingState`."""
        return self._base_url.find_all()

    async def exchange_figures(
        self, replica_id: str, figures: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """See `ServingState`."""
        if self._figures is None:
            return ()
        try:
            return [attrs.asdict(each) for each in await self._figures.exchange(replica_id, figures)]
        except StoreFailed:
            return ()
