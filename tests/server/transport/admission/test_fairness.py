"""Slots under attack: simulated clients, each with a link of its own, on a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from twisted.internet.task import Clock

from image_service.server.transport.admission import rate as rate_module
from image_service.server.transport.admission.rate import DownloadRate
from image_service.server.transport.admission.slot_queue import Slot
from image_service.server.transport.sending.observer import AbortReason
from tests.server.transport.admission.waiting import make_slots
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.transport.admission.slots import Slots

LIMIT, MIN_RATE = 100, 65_536
SLOW, BMC, FAST = 2_000, 125_000, 50_000_000
MIB = 1024 * 1024
ROUND_TRIP_SECONDS = 0.02
SETTLED_SECONDS = 10


@pytest.fixture(autouse=True)
def _transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_module, "acknowledged_bytes", lambda client: client.acknowledged())
    monkeypatch.setattr(rate_module, "queued_bytes", lambda _: 1)


@attrs.define(eq=False)
class SimulatedClient:
    """A client that downloads a file, and perhaps comes back at once.

    Args:
        rate: bytes per second of its link.
        buffered: bytes that its system acknowledges at once.
        returns: it downloads again as soon as it can, whatever has happened.
    """

    clock: Clock
    slots: Slots
    address: str
    rate: float
    size: int = 1024 * MIB
    buffered: int = 0
    is_public: bool = False
    returns: bool = False
    asked_at: float = 0
    granted_after: float | None = None
    was_refused: bool = False
    was_too_slow: bool = False
    _granted_at: float = 0
    _slot: Slot | None = None

    def ask(self) -> None:
        """Request the file."""
        slot = Slot(self.address, self.is_public, DownloadRate(cast("Any", self)), self._abort)
        self._slot = slot
        self.asked_at = self.clock.seconds()
        slot.granted.addCallback(self._granted, slot)
        self.slots.acquire(slot, self.asked_at)

    def acknowledged(self) -> int:
        """As TCP has it."""
        sent = self.rate * (self.clock.seconds() - self._granted_at)
        return min(self.size, self.buffered + int(sent))

    def _granted(self, granted: object, slot: Slot) -> None:
        now = self.clock.seconds()
        if granted:
            self._granted_at = now
            if self.granted_after is None:
                self.granted_after = now - self.asked_at
            self.clock.callLater(self.size / self.rate, self._end, slot)
        else:
            self.was_refused = True
            self._return()

    def _abort(self, reason: AbortReason, _: str) -> None:
        assert reason is AbortReason.TOO_SLOW
        self.was_too_slow = True
        assert self._slot is not None
        self.clock.callLater(0, self._end, self._slot)

    def _end(self, slot: Slot) -> None:
        if self._slot is slot:
            self._slot = None
            self.slots.release(slot)
            self._return()

    def _return(self) -> None:
        if self.returns:
            self.clock.callLater(ROUND_TRIP_SECONDS, self.ask)


@attrs.define
class World:
    """Slots and clients."""

    clock: Clock = attrs.field(factory=Clock)
    slots: Slots = attrs.field()
    honest: list[SimulatedClient] = attrs.field(factory=list)

    @slots.default
    def _make_slots(self) -> Slots:
        return make_slots(LIMIT, LIMIT, min_rate=MIN_RATE, clock=self.clock)

    def attack(self, address: Callable[[int], str], clients: int = LIMIT, **more: Any) -> None:
        """Let slow clients take all slots, for ever."""
        for number in range(clients):
            options = {"rate": SLOW, "returns": True, **more}
            SimulatedClient(self.clock, self.slots, address(number), **options).ask()

    def visit(self, address: str, rate: float, size: int, **more: Any) -> None:
        """Let an honest client ask once."""
        client = SimulatedClient(self.clock, self.slots, address, rate, size, **more)
        self.honest.append(client)
        client.ask()

    def run(self, seconds: float, every: float, visit: Callable[[int], None]) -> None:
        """Call `visit` regularly."""
        number, due = 0, self.clock.seconds()
        end = due + seconds
        while (now := self.clock.seconds()) < end:
            if now >= due:
                visit(number)
                number, due = number + 1, due + every
            self.clock.advance(0.02)

    def served(self) -> float:
        """Return the share of honest clients that were served at their first request, once it has settled."""
        later = [client for client in self.honest if client.asked_at >= SETTLED_SECONDS]
        assert len(later) > 50
        return sum(client.granted_after is not None for client in later) / len(later)


def one_address(_: int) -> str:
    return "198.51.100.1"


def many_addresses(number: int) -> str:
    return f"attacker {number}"


ATTACKS = pytest.mark.parametrize("attackers", [one_address, many_addresses])


@ATTACKS
@pytest.mark.parametrize("count", [LIMIT, soaked(2 * LIMIT)])
def test_others_are_served_soon_although_the_slow_come_back(
    attackers: Callable[[int], str], count: int
) -> None:
    world = World()
    world.attack(attackers, count)

    def visit(number: int) -> None:
        rate, size = (BMC, 4 * MIB) if number % 10 == 0 else (FAST, 100 * MIB)
        world.visit(f"honest {number}", rate, size)

    world.run(45, 0.5, visit)
    assert world.served() > 0.9
    assert not any(client.was_too_slow for client in world.honest)


@ATTACKS
def test_clients_behind_one_address_are_served(attackers: Callable[[int], str]) -> None:
    world = World()
    world.attack(attackers)
    world.run(45, 0.5, lambda _: world.visit("NAT", BMC, 4 * MIB))
    assert world.served() > 0.9
    assert not any(client.was_too_slow for client in world.honest)


def test_clients_behind_the_address_of_the_slow_are_served() -> None:
    world = World()
    world.attack(one_address)
    world.run(45, 0.5, lambda number: world.visit(one_address(number), BMC, MIB))
    assert world.served() > 0.9
    assert not any(client.was_too_slow for client in world.honest)


@ATTACKS
def test_slow_readers_of_public_files_leave_the_other_slots(attackers: Callable[[int], str]) -> None:
    world = World()
    world.attack(attackers, rate=MIN_RATE + 1, is_public=True)
    world.run(20, 0.1, lambda number: world.visit(f"honest {number}", FAST, 100 * MIB))
    assert all(client.granted_after == 0 for client in world.honest)


def test_one_address_uses_what_nobody_else_asks_for() -> None:
    world = World()
    for _ in range(LIMIT):
        world.visit("NAT", SLOW, 100 * MIB)
    world.clock.advance(60)
    assert world.slots.acquired == LIMIT
    assert not any(client.was_too_slow for client in world.honest)
