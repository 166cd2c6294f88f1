"""Coordination of the processes that share a repository: a lock and a version counter for each key.

A process that has written something to the repository bumps the counter of its key. A process that caches
something reads the counter before it reads the repository, and uses its copy while the counter is unchanged.

Keys are digests of at least 8 bytes, alike in all processes.
"""

# ruff: noqa: ARG002 - `Coordination` does not need the arguments that its subclass uses

from __future__ import annotations

import secrets
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import TYPE_CHECKING, Any

from twisted.internet.task import deferLater
from twisted.logger import Logger

from image_service.common.concurrency.file_locks import FileLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

_log = Logger()

LOCKS_FILE = "snapshots.locks"
POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.16
LOCK_TIMEOUT_SECONDS = 60.0
"""After this a lock counts as acquired: a process that hangs must not stop the others for good."""
COUNT = 64 * 1024
"""Counters in shared memory. Keys that share one cause each other reads of the repository, nothing else."""
_COUNTER_BYTES = 8
SIZE_BYTES = (COUNT + 2) * _COUNTER_BYTES
_IS_NOTIFIED, _IDENTITY = COUNT, COUNT + 1
"""The cells after the counters."""


class Coordination:
    """Coordination of a process that shares its repository with no other: nothing is locked or counted."""

    def lock(self, key: bytes) -> AbstractAsyncContextManager[Callable[[], bool]]:
        """Return the lock of a key, which one process holds at a time.

        While it is held, ``counter`` shows the bumps of earlier holders. A process shares work of its
        own by `SingleFlight`.

        Yields:
            a function: False if another process may hold the lock by now, because this one was stopped for
            too long. Then the other one's write is newer.
        """
        return nullcontext(_is_held)

    def counter(self, key: bytes) -> int:
        """Return the version counter of a key, without a system call; 0: no process has bumped it."""
        return 0

    def bump(self, key: bytes) -> int:
        """Change the counter of a key, and return it; another process may change it at any time."""
        return 0

    def watch(self, *keys: bytes) -> Callable[[], bool]:
        """Return a cheap function: True while no process has bumped any of these keys since this call."""
        return lambda: True

    async def run_if_shared(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Run work that only serves other processes, and return its result; True if there is none."""
        return True

    def until_visible(self, write: Deferred[Any], *bumped: bytes) -> Deferred[Any] | None:
        """Return a Deferred that fires when every process can see a write; None: each can.

        Args:
            write: to the repository; never fails.
            bumped: keys that were bumped for it: every process sees that, too.
        """
        return None


class SharedMemoryCoordination(Coordination):
    """Coordination of the processes of one host: counters in shared memory, locks on bytes of a file.

    Args:
        memory: at least `SIZE_BYTES`, writable, zeros at first; the same in all processes.
        locks: the file; is made when it is first used, in a directory that exists then.
    """

    def __init__(self, memory: memoryview, locks: Path, clock: IReactorTime) -> None:
        self._counters = memory[:SIZE_BYTES].cast("B").cast("Q")  # aligned: none is seen half written
        self._locks = FileLocks(locks)
        self._clock = clock

    @classmethod
    def of_one_process(cls, locks: Path, clock: IReactorTime) -> SharedMemoryCoordination:
        """Return the coordination of a process that is alone on its host."""
        return cls(memoryview(bytearray(SIZE_BYTES)), locks, clock)

    @property
    def is_notified(self) -> bool:
        """True while a process of this host is notified of the bumps of other hosts.

        False: it asks for that now and then, or there are no others.
        """
        return bool(self._counters[_IS_NOTIFIED])

    @is_notified.setter
    def is_notified(self, value: bool) -> None:
        self._counters[_IS_NOTIFIED] = value

    def adopt(self, key: bytes, counter: int) -> None:
        """Change the counter of a key unless it has this value, which a process of another host has set.

        The value is not taken over: a late one must not bring back the counter of an older entry.
        """
        if self._counters[_cell(key)] != counter:
            self.bump(key)

    def bump_all(self) -> None:
        """Change all counters."""
        self._counters[:COUNT] = memoryview(secrets.token_bytes(COUNT * _COUNTER_BYTES)).cast("Q")

    def try_local_lock(self, name: str) -> AbstractContextManager[bool]:
        """Return a context manager that holds the lock of a name if no process of this memory does.

        Raises:
            OSError: the file cannot be used.
        """
        if not self._counters[_IDENTITY]:  # services on other hosts may use the file, too
            self._counters[_IDENTITY] = 1 + secrets.randbits(63)
        return self._locks.try_lock(f"{name} {self._counters[_IDENTITY]:x}")

    @asynccontextmanager
    async def lock(self, key: bytes) -> AsyncIterator[Callable[[], bool]]:
        """Hold the lock of a key; it ends with the process. Without a usable file nothing is locked."""
        pause, waited = POLL_SECONDS, 0.0
        with ExitStack() as held:
            while waited < LOCK_TIMEOUT_SECONDS and not self._try_lock(held, key):
                await deferLater(self._clock, pause)
                waited += pause
                pause = min(2 * pause, MAX_POLL_SECONDS)
            yield _is_held

    def counter(self, key: bytes) -> int:
        """Return the version counter of a key."""
        return self._counters[_cell(key)]

    def bump(self, key: bytes) -> int:
        """Set the counter to a random number, so that two processes never write the same."""
        counter = self._counters[_cell(key)] = 1 + secrets.randbelow((1 << 64) - 1)
        return counter

    def watch(self, *keys: bytes) -> Callable[[], bool]:
        """Return a function that returns True while the counters of these keys are as they are now."""
        counters = self._counters
        seen = tuple((cell, counters[cell]) for cell in map(_cell, keys))

        def is_unchanged() -> bool:
            for cell, counter in seen:  # noqa: SIM110 - a generator would take several times as long
                if counters[cell] != counter:
                    return False
            return True

        return is_unchanged

    async def run_if_shared(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Run the work."""
        return await work()

    def until_visible(self, write: Deferred[Any], *bumped: bytes) -> Deferred[Any] | None:
        """Return the write, unless it is over."""
        return None if write.called else write

    def _try_lock(self, held: ExitStack, key: bytes) -> bool:
        try:
            with ExitStack() as attempt:
                if not attempt.enter_context(self._locks.try_lock(key.hex())):
                    return False
                held.push(attempt.pop_all())
        except OSError as error:
            _log.error(
                "cannot lock {path}; serving processes may send equal requests to assisted-service: {reason}",
                path=str(self._locks.path),
                reason=error.strerror,
            )
        return True


def _is_held() -> bool:
    return True


def _cell(key: bytes) -> int:
    return int.from_bytes(key[:_COUNTER_BYTES]) % COUNT
