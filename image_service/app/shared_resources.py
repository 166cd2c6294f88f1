"""What a process of the service has of what all its processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.concurrency.coordination import LocalCoordination
from image_service.observability.metrics import Metrics
from image_service.transport.admission import ConnectionCounter, LocalSlotPool, SlotPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from image_service.app.stand_in import StandIn
    from image_service.concurrency.coordination import Coordination
    from image_service.serving.application import Page


@attrs.frozen(kw_only=True)
class SharedResources:
    """One process's share. By default it is the only one.

    Args:
        leads: whether it does what only one of them is to do.
        supply: makes the supply of slots, by their number.
        headcount: counts clients.
        coordination: with the other processes.
        stand_in: which another process runs; None: it runs here, where there is one.
        page: makes the page of metrics of this process's, at once or later.
        serving: is called when it accepts clients.
    """

    leads: bool = True
    supply: Callable[[int], SlotPool] = LocalSlotPool
    headcount: ConnectionCounter = attrs.field(factory=ConnectionCounter)
    coordination: Coordination = attrs.field(factory=LocalCoordination)
    stand_in: StandIn | None = None
    page: Callable[[Metrics], Page | Deferred[Page]] = Metrics.render
    serving: Callable[[], None] = lambda: None
