"""What the processes of the service share, as one of them has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.concurrency.coordination import Coordination
from image_service.observability.metrics import Metrics
from image_service.transport.admission import ConnectionCounter, LocalSlotPool, SlotPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from image_service.app.standalone_mode import StandIn
    from image_service.serving.request_handler import Page


@attrs.frozen(kw_only=True)
class SharedResources:
    """By default those of a process that serves alone.

    Args:
        is_leader: True in the one process that does what must be done once.
        slot_pool: makes the pool of download slots, by their number.
        connections: counts those of all processes.
        coordination: with the other processes.
        stand_in: that runs in another process; None: in standalone mode it is started here.
        metrics_page: renders the metrics of all processes, given those of this one.
        serving: is called when this process accepts connections.
    """

    is_leader: bool = True
    slot_pool: Callable[[int], SlotPool] = LocalSlotPool
    connections: ConnectionCounter = attrs.field(factory=ConnectionCounter)
    coordination: Coordination = attrs.field(factory=Coordination)
    stand_in: StandIn | None = None
    metrics_page: Callable[[Metrics], Page | Deferred[Page]] = Metrics.render
    serving: Callable[[], None] = lambda: None
