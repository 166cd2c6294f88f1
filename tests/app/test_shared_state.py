"""Slots and connections of several workers, all of them in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import SharedMemoryCoordination
from image_service.server.processes.shared_state import (
    MAX_PROCESSES,
    SharedMemory,
    SharedSlotPool,
    create_memory,
    create_slots,
    return_resources,
)
from image_service.server.transport.admission.counts import CONNECTIONS, Counts
from image_service.server.transport.admission.slot_queue import Slot
from image_service.server.transport.admission.slots import CHECK_SECONDS, SLOT_TIMEOUT_SECONDS, Slots
from tests.pytwisted import ensure_deferred
from tests.server.transport.admission.waiting import acquire
from tests.server.transport.null_observer import NULL_OBSERVER
from tests.server.transport.reactor_turns import turns, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IReadDescriptor

LIMIT = 3


@attrs.frozen
class Workers:
    """What two workers share."""

    shared: SharedMemory
    slots: tuple[int, int]
    """A descriptor of the same slots for each."""

    def row(self, worker: int) -> memoryview[int]:
        return self.shared.row(worker)

    def pool(self, reactor: EPollReactor, worker: int) -> SharedSlotPool:
        counts = Counts(self.row(worker), [self.row(number) for number in range(2)])
        return SharedSlotPool(reactor, self.slots[worker], LIMIT, counts)


@pytest.fixture
def workers() -> Iterator[Workers]:
    descriptor, slots = create_memory(), create_slots(LIMIT)
    both = slots, os.dup(slots)
    yield Workers(SharedMemory(descriptor), both)
    for each in (descriptor, *both):
        os.close(each)


def test_slots_are_shared_by_all_workers(workers: Workers, reactor: EPollReactor) -> None:
    one, other = (workers.pool(reactor, number) for number in range(2))
    assert [one.acquire_slot(), other.acquire_slot(), one.acquire_slot(), other.acquire_slot()] == [
        True,
        True,
        True,
        False,
    ]
    other.release_slot()
    assert [one.acquire_slot(), one.acquire_slot()] == [True, False]


def test_resources_of_a_dead_worker_are_returned(workers: Workers, reactor: EPollReactor) -> None:
    one, other = (workers.pool(reactor, number) for number in range(2))
    one.acquire_slot()
    other.acquire_slot()
    other.acquire_slot()
    Counts(workers.row(1)).add(CONNECTIONS, 9)
    return_resources(workers.row(1), workers.slots[0])
    return_resources(workers.row(1), workers.slots[0])
    assert [one.acquire_slot(), one.acquire_slot(), one.acquire_slot()] == [True, True, False]
    assert list(workers.row(1)) == [0] * len(workers.row(1))


@ensure_deferred
async def test_waiting_download_is_granted_a_slot_that_another_process_releases(
    workers: Workers, reactor: EPollReactor
) -> None:
    one, other = (
        Slots(
            workers.pool(reactor, number),
            9,
            SLOT_TIMEOUT_SECONDS,
            min_rate=0,
            clock=Clock(),
            observer=NULL_OBSERVER,
        )
        for number in range(2)
    )
    taken = [acquire(one) for _ in range(LIMIT)]
    first, second, third = (acquire(other) for _ in range(3))
    await turns(reactor)
    assert not first.granted.called
    one.release(taken[0])
    await until(reactor, lambda: first.granted.called)
    other.release(second)  # has left the queue
    one.release(taken[1])
    await until(reactor, lambda: third.granted.called)
    assert (one.acquired, other.acquired, other.waiting) == (1, 2, 0)
    for slot in (taken[2], first, third):
        one.release(slot)
        other.release(slot)
    await turns(reactor)
    assert _readers(reactor) == []  # a free slot wakes no process in which nothing waits


@ensure_deferred
async def test_slow_download_is_aborted_for_one_that_waits_in_another_process(
    workers: Workers, reactor: EPollReactor
) -> None:
    clock = Clock()
    one, other = (
        Slots(
            workers.pool(reactor, number),
            9,
            SLOT_TIMEOUT_SECONDS,
            min_rate=100,
            clock=clock,
            observer=NULL_OBSERVER,
        )
        for number in range(2)
    )
    taken = [Slot(f"slow {rate}", False, Mock(sample=Mock(return_value=rate)), Mock()) for rate in (9, 2, 5)]  # noqa: FBT003 - no public files
    for slot in taken:
        one.acquire(slot, 0)
    waiting = acquire(other, "other")
    clock.advance(CHECK_SECONDS)
    assert [slot.abort.called for slot in taken] == [False, True, False]  # type: ignore[attr-defined] # mocks
    # The address that was too slow leaves the slot to the other process.
    again = Slot("slow 2", False, Mock(sample=Mock(return_value=None)), Mock())  # noqa: FBT003 - same
    one.acquire(again, clock.seconds())
    one.release(taken[1])
    assert not again.granted.called
    await until(reactor, lambda: waiting.granted.called)
    for slot in (*taken, again):
        one.release(slot)
    other.release(waiting)


def _readers(reactor: EPollReactor) -> list[IReadDescriptor]:
    return [reader for reader in reactor.getReaders() if isinstance(reader, SharedSlotPool)]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, -1]))))
def test_each_process_counts_the_connections_of_all(steps: list[tuple[int, int]]) -> None:
    descriptor = create_memory()
    shared = SharedMemory(descriptor)
    os.close(descriptor)
    rows = [shared.row(number) for number in range(4)]
    counts = [Counts(row, rows) for row in rows]
    own = [0] * 4
    for worker, by in steps:
        counts[worker].add(CONNECTIONS, by)
        own[worker] += by
    assert [count.total(CONNECTIONS) for count in counts] == [sum(own)] * 4
    assert [count.own(CONNECTIONS) for count in counts] == own


def test_rows_of_workers_and_versions_of_keys_do_not_overlap() -> None:
    descriptor = create_memory()
    one, other = SharedMemory(descriptor), SharedMemory(descriptor)
    os.close(descriptor)
    for worker in range(MAX_PROCESSES):
        row = one.row(worker)
        for cell in range(len(row)):
            row[cell] = worker + 1
    key = bytes(32)
    bumping, looking = (
        SharedMemoryCoordination(each.versions, Path("/nonexistent"), Clock()) for each in (one, other)
    )
    assert looking.counter(key) != bumping.bump(key) == looking.counter(key)
    assert [set(other.row(worker)) for worker in range(MAX_PROCESSES)] == [
        {worker + 1} for worker in range(MAX_PROCESSES)
    ]
