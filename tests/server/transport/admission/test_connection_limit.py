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

from image_service.server.transport.admission.connection_limit import (
    MIN_IDLE_PROVEN_SECONDS,
    MIN_IDLE_SECONDS,
    OVERLOAD_RESERVE,
    SEARCH_SECONDS,
    Admission,
    ConnectionLimit,
)
from image_service.server.transport.admission.counts import CONNECTIONS, Counts
from image_service.server.transport.sending.observer import AbortReason
from image_service.settings.network import LimitSettings
from tests.server.transport.recording_observer import RecordingObserver

PROXY = "10.0.0.1"
SLOW_SECONDS = 16
"""After this a response without a slot, of 1 MiB at most, is slower than the default least rate."""


@attrs.define(eq=False)
class FakeConnection:
    """A connection that waits for a request since it was made, unless a request is in progress."""

    admission: Admission
    idle_since: float | None
    exchange: object | None = None
    unread_since: float | None = None
    closed: list[FakeConnection] = attrs.field(factory=list)

    def close(self, *, at_once: bool) -> None:
        """Record the close."""
        assert at_once
        assert self.exchange is None
        self._end()

    def abort(self, reason: AbortReason, detail: str) -> None:
        """Record the close."""
        assert (reason, bool(detail)) == (AbortReason.TOO_SLOW, True)
        assert self.exchange is not None
        self._end()

    def _end(self) -> None:
        self.idle_since = self.unread_since = None
        self.closed.append(self)


class World:
    """A limit and its connections."""

    def __init__(self, connections: int, per_address: int = 0, *, min_rate: int = 65536) -> None:
        self.clock = Clock()
        self.observer = RecordingObserver()
        self.counts = Counts()
        limits = LimitSettings(
            connections=connections, connections_per_address=per_address, min_download_rate=min_rate
        )
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

    def accept_slow(self, *, is_proven: bool = False) -> FakeConnection:
        """Let a client connect that does not read what it has asked for."""
        connection = self.accept(is_busy=True)
        connection.unread_since = self.clock.seconds()
        connection.admission.is_proven = is_proven
        return connection

    def lose(self, connection: FakeConnection) -> None:
        """Let a connection end."""
        self.connections.remove(connection)
        self.limit.remove(connection)


CONNECTIONS_OF_CLIENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans(), st.floats(0.1, 9)),
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
        if (since := connection.idle_since) is not None
        and now - since >= (MIN_IDLE_PROVEN_SECONDS if connection.admission.is_proven else MIN_IDLE_SECONDS)
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


def test_slow_reader_of_a_small_response_gives_way_before_an_idle_mount() -> None:
    world = World(2)
    slow, mount = world.accept_slow(), world.accept("mount")
    mount.admission.is_proven = True
    world.clock.advance(SLOW_SECONDS)
    assert not world.accept(is_busy=True).admission.overloaded
    assert world.closed == [slow]


def test_mount_is_kept_until_slow_readers_give_way() -> None:
    world = World(2)
    mount = world.accept("mount")
    mount.admission.is_proven = True
    slow = world.accept_slow()
    world.clock.advance(SLOW_SECONDS - 1)
    assert world.accept(is_busy=True).admission.overloaded
    world.clock.advance(MIN_IDLE_PROVEN_SECONDS)
    assert not any(world.accept(is_busy=True).admission.overloaded for _ in range(2))
    assert world.closed == [slow, mount]


def test_slow_reader_is_kept_while_it_may_be_fast_enough_and_a_proven_one_longer() -> None:
    world = World(2)
    world.accept_slow(is_proven=True)
    slow = world.accept_slow()
    world.clock.advance(SLOW_SECONDS - 1)
    assert world.accept().admission.overloaded
    world.clock.advance(1)
    assert not world.accept(is_busy=True).admission.overloaded
    assert world.accept().admission.overloaded
    assert world.closed == [slow]


def test_connection_that_closes_slowly_gives_way() -> None:
    world = World(1)
    closing = world.accept_slow()
    closing.exchange = None
    world.clock.advance(SLOW_SECONDS)
    assert not world.accept().admission.overloaded
    assert world.closed == [closing]


def test_without_a_least_rate_no_reader_is_slow() -> None:
    world = World(1, min_rate=0)
    world.accept_slow()
    world.clock.advance(1000 * SLOW_SECONDS)
    assert world.accept().admission.overloaded


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
