"""Runs a fleet: hosts that mount one image each, and the events meanwhile."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import attrs
from twisted.internet.threads import deferToThread

from image_service.tools.loadtest.traffic.client import LoadClient, VerificationError
from image_service.tools.loadtest.traffic.fleet_result import FleetResult
from image_service.tools.loadtest.traffic.profiles import Profile, ranges
from image_service.tools.loadtest.traffic.run import Run
from image_service.tools.loadtest.traffic.verification import MountCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from twisted.internet.defer import Deferred

    from image_service.tools.loadtest.fleet.assisted_service import FleetAssistedService
    from image_service.tools.loadtest.fleet.expected_images import ExpectedImages
    from image_service.tools.loadtest.fleet.services import FleetService
    from image_service.tools.loadtest.fleet.splice import SplicedBase
    from image_service.tools.loadtest.traffic.counters import Interval
    from image_service.tools.loadtest.traffic.dialer import ClientReactor, Dialer
    from image_service.tools.loadtest.traffic.plan import Plan
    from image_service.tools.loadtest.traffic.run_state import RunState

OUTAGE_AT, BASE_CHANGES_AT, RESTARTS_AT = 0.25, 0.45, 0.65
"""Shares of all ranges: when so many were read, the event begins.

The services restart last: they must find the base image again that the mounts before the change read.
"""
LATE_HOSTS = 0.1
"""The share of hosts that start after the base image has changed."""
_POLL_SECONDS = 0.2


@attrs.frozen
class FleetPlan:
    """A fleet.

    Args:
        ranges: that each host reads.
        start_seconds: in which hosts start: half of them in the first eighth.
        outage_seconds: how long assisted-service is out.
    """

    hosts: int
    infra_envs: int
    ranges: int
    start_seconds: float
    outage_seconds: float


@attrs.frozen
class FleetParts:
    """What serves a fleet.

    Args:
        bases: the base image, and the one that takes its place.
        infra_envs: identifiers; images have their order.
    """

    bases: Sequence[SplicedBase]
    infra_envs: Sequence[str]
    assisted_service: FleetAssistedService
    services: Sequence[FleetService]
    expected: ExpectedImages


class FleetHost(LoadClient):
    """A host: mounts one image, and reads a number of ranges. As firmware, it repeats what fails.

    Args:
        has_changed: returns True once the base image has changed.
    """

    def __init__(
        self, state: RunState, number: int, plan: FleetPlan, has_changed: Callable[[], bool]
    ) -> None:
        super().__init__(state, number)
        self._fleet = plan
        self._has_changed = has_changed
        self.ranges_read = 0

    @property
    def has_failed(self) -> bool:
        """True if it has not read all its ranges."""
        return self.ranges_read < self._fleet.ranges

    async def run(self) -> None:
        """Read until all is read, or until canceled."""
        mount = MountCheck(self._number % len(self._plan.targets), self._state.blocks)
        try:
            await self._start()
            await self._read_ranges(mount)
        except VerificationError as error:
            self._record_fault(mount, error)
        finally:
            self._disconnect()

    async def _start(self) -> None:
        if self._number >= self._fleet.hosts * (1 - LATE_HOSTS):
            while not self._has_changed() and not self._state.is_over:
                await self._state.sleep(_POLL_SECONDS)
        else:
            await self._state.sleep(self._random.random() ** 3 * self._fleet.start_seconds)

    async def _read_ranges(self, mount: MountCheck) -> None:
        while mount.size is None and not self._state.is_over:
            await self._read_head(mount)
        for start, stop in islice(ranges(Profile.FLEET, mount.size or 0, self._random), self._fleet.ranges):
            while not await self._read_range(mount, start, stop):
                if self._state.is_over:
                    return
            self.ranges_read += 1


class FleetRun(Run):
    """Runs a fleet, and what befalls it: an outage of assisted-service, restarts, another base image."""

    def __init__(  # noqa: PLR0913 - those of `Run`, and the fleet's own
        self,
        reactor: ClientReactor,
        plan: Plan,
        dialer: Dialer,
        show: Callable[[Interval], None],
        *,
        fleet: FleetPlan,
        parts: FleetParts,
    ) -> None:
        super().__init__(reactor, plan, dialer, show, blocks=parts.expected)
        self._fleet = fleet
        self._parts = parts
        self._hosts: list[FleetHost] = []
        self._has_changed = False
        self._events: list[tuple[str, float, float]] = []

    @property
    def fleet_result(self) -> FleetResult:
        """What came of it."""
        fleet, parts = self._fleet, self._parts
        return FleetResult(
            hosts=fleet.hosts,
            failed_hosts=sum(host.has_failed for host in self._hosts),
            infra_envs=fleet.infra_envs,
            ranges=fleet.ranges,
            upstream_calls=parts.assisted_service.calls,
            bases_read=parts.expected.bases_read,
            events=self._events,
        )

    def _make_clients(self) -> Sequence[LoadClient]:
        self._hosts = [
            FleetHost(self.state, number, self._fleet, lambda: self._has_changed)
            for number in range(self._fleet.hosts)
        ]
        return self._hosts

    def _accompany(self) -> Iterable[Coroutine[Deferred[None], object, None]]:
        return (self._let_events_happen(),)

    async def _let_events_happen(self) -> None:
        for at, name, happen in (
            (OUTAGE_AT, "outage of assisted-service", self._lose_assisted_service),
            (BASE_CHANGES_AT, "another base image", self._change_base),
            (RESTARTS_AT, "rolling restart", self._restart_services),
        ):
            await self._await_share(at)
            if self.state.is_over:
                return
            begun_at = self.state.elapsed_seconds
            await happen()
            self._events.append((name, begun_at, self.state.elapsed_seconds))

    async def _await_share(self, share: float) -> None:
        due = share * self._fleet.hosts * self._fleet.ranges
        while sum(host.ranges_read for host in self._hosts) < due and not self.state.is_over:
            await self.state.sleep(_POLL_SECONDS)

    async def _change_base(self) -> None:
        for service in self._parts.services:
            await deferToThread(service.change_base, self._parts.bases[1], self._parts.infra_envs[-1])
        self._has_changed = True

    async def _lose_assisted_service(self) -> None:
        self._parts.assisted_service.is_out = True
        await self.state.sleep(self._fleet.outage_seconds)
        self._parts.assisted_service.is_out = False

    async def _restart_services(self) -> None:
        for service in self._parts.services:
            await deferToThread(service.restart, self._parts.infra_envs[-1])
