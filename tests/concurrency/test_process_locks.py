from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NoReturn

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from image_service.concurrency.file_locks import FileLocks
from image_service.concurrency.process_locks import (
    MAX_POLL_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
    Turns,
    no_turn,
)
from tests.snapshots.pinning import Outcome, outcome

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from image_service.concurrency.process_locks import Turn

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Asker:
    """Somebody who takes a turn, and keeps it until it is told otherwise."""

    def __init__(self, turn: Turn, key: bytes = KEY) -> None:
        self.has_turn = False
        self.done: Deferred[None] = Deferred()
        self.outcome = Outcome(self._ask(turn, key))

    async def _ask(self, turn: Turn, key: bytes) -> None:
        async with turn(key):
            self.has_turn = True
            await self.done


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def processes(tmp_path: Path, clock: Clock) -> list[Turns]:
    return [Turns(FileLocks(tmp_path / "locks"), clock) for _ in range(3)]


def test_one_question_is_asked_by_one_process_at_a_time(processes: list[Turns], clock: Clock) -> None:
    askers = [Asker(process.of) for process in processes]
    for number in range(len(askers)):
        assert [asker.has_turn for asker in askers].count(True) == number + 1
        next(asker for asker in askers if asker.has_turn and not asker.done.called).done.callback(None)
        clock.advance(MAX_POLL_SECONDS)
    assert all(asker.outcome.is_there for asker in askers)
    assert clock.getDelayedCalls() == []


def test_another_question_is_another_turn(processes: list[Turns]) -> None:
    one, other = Asker(processes[0].of), Asker(processes[1].of, OTHER_KEY)
    assert (one.has_turn, other.has_turn) == (True, True)
    for asker in (one, other):
        asker.done.callback(None)


def test_the_turn_is_soon_noticed_and_seldom_looked_for(
    processes: list[Turns], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    lock = FileLocks.tried

    def counted(locks: FileLocks, name: str) -> AbstractContextManager[bool]:
        tried.append(name)
        return lock(locks, name)

    monkeypatch.setattr(FileLocks, "tried", counted)
    one, other = (Asker(process.of) for process in processes[:2])
    for _ in range(100):
        clock.advance(POLL_SECONDS)
    assert len(tried) < 100 * POLL_SECONDS / MAX_POLL_SECONDS + 10
    one.done.callback(None)
    clock.advance(MAX_POLL_SECONDS)
    assert other.has_turn
    other.done.callback(None)


def test_a_turn_ends_with_a_failure_too(processes: list[Turns]) -> None:
    one = Asker(processes[0].of)
    one.done.errback(ValueError("of who asked"))
    assert isinstance(one.outcome.error, ValueError)
    other = Asker(processes[1].of)
    assert other.has_turn
    other.done.callback(None)


def test_who_dies_has_given_its_turn_away(tmp_path: Path, clock: Clock) -> None:
    turns = Turns(FileLocks(tmp_path / "locks"), clock)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with FileLocks(tmp_path / "locks").tried(KEY.hex()):
            os.write(tell, b"locked")
            signal.pause()
    os.read(told, 6)
    asker = Asker(turns.of)
    assert [asker.has_turn] == [False]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    os.close(tell)
    clock.advance(MAX_POLL_SECONDS)
    assert asker.has_turn
    asker.done.callback(None)


def test_one_that_hangs_is_not_waited_for_for_good(processes: list[Turns], clock: Clock) -> None:
    hanging, other = (Asker(process.of) for process in processes[:2])
    clock.pump([POLL_SECONDS] * int(PATIENCE_SECONDS / 2 / POLL_SECONDS))
    assert [other.has_turn] == [False]
    clock.pump([POLL_SECONDS] * int(PATIENCE_SECONDS / POLL_SECONDS))
    assert other.has_turn
    for asker in (other, hanging):
        asker.done.callback(None)
        assert asker.outcome.is_there


def test_where_no_lock_can_be_had_all_ask(processes: list[Turns], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(FileLocks, "tried", fail)

    async def ask() -> str:
        async with processes[0].of(KEY):
            return "asked"

    with capturedLogs() as logs:
        assert outcome(ask()) == "asked"
    assert "too many open files" in str(logs)


def test_nobody_waits_where_there_is_one_process() -> None:
    one, other = Asker(no_turn), Asker(no_turn)
    assert (one.has_turn, other.has_turn) == (True, True)
    one.done.callback(None)
    other.done.callback(None)
