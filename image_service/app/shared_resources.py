"""Resources that the processes of the service share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.app.admin.listener import start_administration
from image_service.common.concurrency.coordination import Coordination
from image_service.server.observability.metrics import Metrics
from image_service.server.transport.admission.counts import Counts
from image_service.server.transport.admission.slot_pool import LocalSlotPool, SlotPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from image_service.app.standalone_mode import StandIn
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.activity import Collect
    from image_service.server.admin.admin_api import AdminApi
    from image_service.server.admin.state import ServingState
    from image_service.server.serving.pages import Page
    from image_service.settings.settings import Settings


@attrs.frozen(kw_only=True)
class SharedResources:
    """Resources that the processes of the service share; the defaults are those of a single process."""

    is_leader: bool = True  # in the one process that does the work that is done once
    counts: Counts = attrs.field(factory=Counts)  # of slots and connections
    slot_pool: Callable[[int, Counts], SlotPool] = LocalSlotPool  # makes the pool, by its number of slots
    coordination: Coordination = attrs.field(factory=Coordination)
    stand_in: StandIn | None = None  # in another process; None: in standalone mode it is started here
    metrics_page: Callable[[Metrics], Page | Deferred[Page]] = Metrics.render  # of all processes
    start_admin: Callable[[PartsStack, Settings, ServingState, Collect, Metrics, AdminApi | None], object] = (
        start_administration
    )
    serving: Callable[[], None] = lambda: None  # is called when connections are accepted
    set_status: Callable[[str], None] | None = None  # for the service manager; None: this process notifies it
