"""The state of the jobs role, for the administrative listener."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import StoreFailed
from image_service.server.catalog.lifecycle.status import render_statuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.app.jobs.engine import StartedEngine
    from image_service.app.jobs.rows import JobsRows
    from image_service.common.concurrency.process_parts import InThread
    from image_service.server.admin.state import Page
    from image_service.server.catalog.catalog import Catalog


@attrs.frozen
class JobsState:
    """The `ServiceState` of the jobs role.

    Args:
        in_thread: runs probes of the database in a thread of their own: they do not wait for clients.
    """

    _rows: JobsRows
    _engine: StartedEngine
    _catalog: Catalog
    _render_metrics: Callable[[], Page]
    _in_thread: InThread
    _probes: SingleFlight[str, str] = attrs.field(factory=SingleFlight, init=False)

    async def unready_reason(self) -> str:
        """Return the reason for which requests fail: without the database all do.

        An engine of its own that does not answer makes it unready. An engine that processes share does not:
        composes can still be listed and downloaded.
        """
        fault = await self._probes.join("database", self._probe_database)
        return fault or (self._engine.fault if self._engine.child else "")

    async def _probe_database(self) -> str:
        try:
            await self._in_thread(partial(self._rows.composes.find, "", ""))  # reads, and finds none
        except StoreFailed as error:
            return f"database: {error.detail}"
        return ""

    async def describe_impairment(self) -> str:
        """Return the fault of a service that accepts and lists composes nevertheless."""
        return self._engine.fault

    async def render_metrics(self) -> Page:
        """Return the page of metrics."""
        return self._render_metrics()

    async def render_images(self) -> str:
        """Return the states of the base images as JSON."""
        return render_statuses(self._catalog.statuses()).decode()
