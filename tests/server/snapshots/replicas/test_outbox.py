"""What a process tells the other replicas, while the database can be used and while it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS, Claim
from image_service.server.snapshots.replicas.outbox import RETRY_SECONDS, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.database.postgresql import PostgresqlDatabase

T = TypeVar("T")

ONE, OTHER = b"1" * 32, b"2" * 32


@attrs.define(eq=False)
class Threads:
    """Threads and a database in one: batches that are being written, until the test ends them."""

    written: list[tuple[dict[bytes, int], list[Claim]]] = attrs.field(factory=list)
    writing: list[Deferred[None]] = attrs.field(factory=list)

    async def __call__(self, work: Callable[[], T], /) -> T:
        """As an ``InThread``; the work of the outbox is a partial transaction of a batch."""
        self.writing.append(Deferred())
        await self.writing[-1]
        batch = cast("Any", work).args[0].__self__
        self.written.append((batch.changes, list(batch.released)))
        return cast("T", None)

    def transact(self, _: object) -> None:
        """As ``Database.transact``, but does nothing."""

    def succeed(self) -> None:
        self.writing[-1].callback(None)

    def fail(self) -> None:
        self.writing[-1].errback(StoreFailed("the server is gone"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def outbox(threads: Threads, clock: Clock) -> Outbox:
    return Outbox(cast("PostgresqlDatabase", threads), threads, clock)


def test_first_change_is_written_at_once_and_later_ones_together(outbox: Outbox, threads: Threads) -> None:
    claim = Claim(ONE)
    outbox.change(ONE, 1)
    outbox.change(ONE, 2)
    outbox.change(OTHER, 3)
    outbox.release(claim)
    threads.succeed()
    threads.succeed()
    assert threads.written == [({ONE[:8]: 1}, []), ({ONE[:8]: 2, OTHER[:8]: 3}, [claim])]
    assert len(threads.writing) == 2


def test_what_could_not_be_written_is_written_with_what_came_later(
    outbox: Outbox, threads: Threads, clock: Clock, messages: list[str]
) -> None:
    one, other = Claim(ONE), Claim(OTHER)
    outbox.release(one)
    outbox.change(ONE, 1)
    threads.fail()
    for _ in range(3):
        clock.advance(RETRY_SECONDS)
        threads.fail()
    assert threads.written == []
    outbox.change(ONE, 2)
    outbox.release(other)
    clock.advance(RETRY_SECONDS)
    threads.succeed()
    assert threads.written == [({ONE[:8]: 2}, [one, other])]
    assert messages == ["cannot notify other replicas, trying again: the server is gone"]
    assert clock.getDelayedCalls() == []


def test_what_waits_for_the_database_is_bounded(
    outbox: Outbox, threads: Threads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.server.snapshots.replicas.outbox.MAX_CHANGES", 3)
    one, other = Claim(ONE), Claim(OTHER)
    outbox.release(one)
    keys = [bytes([number]) * 8 for number in range(5)]
    for _ in range(int(CLAIM_SECONDS / RETRY_SECONDS)):
        threads.fail()
        for number, key in enumerate(keys):
            outbox.change(key, number)
        clock.advance(RETRY_SECONDS)
    threads.fail()
    outbox.release(other)
    clock.advance(RETRY_SECONDS)
    threads.succeed()
    ((changed, released),) = threads.written
    assert len(changed) == 3
    assert changed.items() <= dict(zip(keys, range(5), strict=True)).items()
    assert released == [other], "the first has expired"


def test_waiting_ends_when_all_is_written(outbox: Outbox, threads: Threads) -> None:
    assert outbox.until_tried().called
    outbox.change(ONE, 1)
    first = outbox.until_tried()
    outbox.change(ONE, 2)
    second = outbox.until_tried()
    assert [first.called] == [False]
    threads.succeed()
    assert first.called
    assert [second.called] == [False]
    threads.succeed()
    assert second.called


def test_nobody_waits_for_a_database_that_cannot_be_used(
    outbox: Outbox, threads: Threads, clock: Clock
) -> None:
    outbox.change(ONE, 1)
    tried = outbox.until_tried()
    threads.fail()
    assert tried.called
    outbox.change(OTHER, 2)
    assert outbox.until_tried().called
    clock.advance(RETRY_SECONDS)
    threads.succeed()
    outbox.change(OTHER, 3)
    assert not outbox.until_tried().called
    threads.succeed()


def test_time_of_the_latest_change_is_that_of_its_commit(
    outbox: Outbox, threads: Threads, clock: Clock
) -> None:
    outbox.release(Claim(ONE))
    threads.succeed()
    assert outbox.changed_at < 0
    outbox.change(ONE, 1)
    clock.advance(3)
    threads.succeed()
    assert outbox.changed_at == 3


@pytest.mark.parametrize("fails", [False, True])
def test_stop_writes_what_is_left_or_gives_up(
    outbox: Outbox, threads: Threads, clock: Clock, *, fails: bool
) -> None:
    outbox.release(Claim(ONE))
    stopped = Deferred.fromCoroutine(outbox.stop())
    assert [stopped.called] == [False]
    if fails:
        threads.fail()
    else:
        threads.succeed()
    assert stopped.called
    assert clock.getDelayedCalls() == []
