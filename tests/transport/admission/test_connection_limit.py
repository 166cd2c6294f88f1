"""The limit on connections, with connections that are none."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_network
from typing import Any
from unittest.mock import Mock

import attrs
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.settings.network import LimitSettings
from image_service.transport.admission.connection_limit import (
    MIN_IDLE_SECONDS,
    OVERLOAD_RESERVE,
    SEARCH_SECONDS,
    Admission,
    ConnectionLimit,
)
from image_service.transport.admission.counts import CONNECTIONS, Counts
from tests.transport.recording_observer import RecordingObserver

PROXY = "10.0.0.1"


@attrs.define(eq=False)
class FakeConnection:
    """A connection that waits for a request since it was made, unless a request is in progress."""

    admission: Admission
    idle_since: float | None
    exchange: object | None = None
    closed: list[FakeConnection] = attrs.field(factory=list)

    def close(self, *, at_once: bool) -> None:
        """Record the close."""
        assert at_once
        self.idle_since = None
        self.closed.append(self)


class World:
    """A limit and its connections."""

    def __init__(self, connections: int, per_address: int = 0) -> None:
        self.clock = Clock()
        self.observer = RecordingObserver()
        self.counts = Counts()
        limits = LimitSettings(connections=connections, connections_per_address=per_address)
        proxies = (ip_network("10.0.0.0/8"),)
        self.limit = ConnectionLimit(limits, proxies, self.counts, self.clock, self.observer)
        self.connections: set[Any] = set()
        self.limit.listeners.append(self.connections)
        self.closed: list[FakeConnection] = []

    def connect(self, address: str = "a") -> FakeConnection | None:
        """Let a client connect."""
        admission = self.limit.admit(address)
        if admission is None:
            return None
        connection = FakeConnection(admission, self.clock.seconds(), closed=self.closed)
        self.connections.add(connection)
        self.limit.add(connection)
        return connection

    def accept(self, address: str = "a", *, is_busy: bool = False) -> FakeConnection:
        """Let a client connect, which must be admitted."""
        connection = self.connect(address)
        assert connection is not None
        if is_busy:
            connection.exchange, connection.idle_since = object(), None
        return connection

    def lose(self, connection: FakeConnection) -> None:
        """Let a connection end."""
        self.connections.remove(connection)
        self.limit.remove(connection)


CONNECTIONS_OF_CLIENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans(), st.floats(0.1, 3)),
    min_size=1,
    max_size=12,
)


@given(CONNECTIONS_OF_CLIENTS)
def test_connections_are_closed_in_the_order_of_a_naive_search(
    clients: list[tuple[str, bool, bool, float]],
) -> None:
    world = World(len(clients))
    made = []
    for address, is_proven, is_busy, pause in clients:
        world.clock.advance(pause)
        made.append(world.accept(address, is_busy=is_busy))
        made[-1].admission.is_proven = is_proven
    now = world.clock.seconds()
    left = Counter(connection.admission.group for connection in made)
    idle = {
        connection: since
        for connection in made
        if (since := connection.idle_since) is not None and now - since >= MIN_IDLE_SECONDS
    }
    expected = []
    while idle:
        first = min(
            idle,
            key=lambda each: (each.admission.is_proven, -left[each.admission.group], idle[each]),
        )
        expected.append((first.admission.group, first.admission.is_proven, idle.pop(first)))
        left[first.admission.group] -= 1
    idle_before = {connection: connection.idle_since for connection in made}
    while not world.accept("new", is_busy=True).admission.overloaded:
        pass
    closed = [(each.admission.group, each.admission.is_proven, idle_before[each]) for each in world.closed]
    assert closed == expected
    assert world.counts.total(CONNECTIONS) == len(clients) + 1


def test_connection_that_is_used_again_is_not_closed() -> None:
    world = World(2)
    one = world.accept()
    world.clock.advance(0.5)
    other = world.accept()
    world.clock.advance(MIN_IDLE_SECONDS)
    world.accept(is_busy=True)
    assert world.closed == [one]
    other.idle_since = world.clock.seconds()  # it was idle when the list was made
    assert world.accept().admission.overloaded


def test_idle_connections_are_searched_for_once_per_second() -> None:
    world = World(1)
    world.accept(is_busy=True)
    find = Mock(return_value=[])
    world.limit._find_idle = find  # type: ignore[method-assign]
    for _ in range(40):
        assert world.accept().admission.overloaded
        world.clock.advance(SEARCH_SECONDS / 10)
    assert find.call_count <= 5


def test_silent_connections_of_the_reserve_give_way() -> None:
    world = World(1)
    world.accept(is_busy=True)
    reserve = [world.accept() for _ in range(OVERLOAD_RESERVE)]
    reserve[0].exchange = object()
    newer = [world.accept() for _ in range(OVERLOAD_RESERVE)]
    assert world.closed == [*reserve[1:], newer[0]]
    assert world.counts.total(CONNECTIONS) == 1 + OVERLOAD_RESERVE
    assert world.observer.refusals == []


def test_connection_is_refused_if_none_can_be_closed() -> None:
    world = World(1)
    *_, last = [world.accept(is_busy=True) for _ in range(1 + OVERLOAD_RESERVE)]
    assert world.connect() is None
    assert world.observer.refusals == ["connections"]
    world.lose(last)
    assert world.accept().admission.overloaded


def test_closed_connection_is_counted_once() -> None:
    world = World(1)
    first = world.accept()
    world.clock.advance(MIN_IDLE_SECONDS)
    second = world.accept()
    assert world.counts.total(CONNECTIONS) == 1
    world.lose(first)
    assert world.counts.total(CONNECTIONS) == 1
    world.lose(second)
    assert world.counts.total(CONNECTIONS) == 0


def test_connections_of_one_address_are_limited() -> None:
    world = World(100, per_address=2)
    first, _ = world.accept("a"), world.accept("a")
    assert world.connect("a") is None
    assert world.connect("b") is not None
    assert world.observer.refusals == ["connections-per-address"]
    world.lose(first)
    assert world.connect("a") is not None


def test_forwarded_addresses_are_limited_instead_of_the_proxys() -> None:
    world = World(100, per_address=2)
    connections = [world.accept(PROXY) for _ in range(4)]
    for connection in connections[:3]:
        world.limit.set_group(connection.admission, "a")
    world.limit.set_group(connections[3].admission, "b")
    assert [each.admission.overloaded for each in connections] == [False, False, True, False]
    assert world.observer.refusals == ["connections-per-address"]
