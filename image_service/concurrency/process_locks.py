"""Turns: of several processes, one at a time asks one question."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.task import deferLater
from twisted.logger import Logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.file_locks import FileLocks

_log = Logger()

Turn: TypeAlias = Callable[[bytes], AbstractAsyncContextManager[None]]
"""Waits, by a question's key, until it is this process that may ask it."""
TURNS_FILE = "snapshots.locks"
POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.16
PATIENCE_SECONDS = 60.0
"""For a process that has its turn; one that hangs must not keep the others from asking for good."""


def no_turn(_: bytes) -> AbstractAsyncContextManager[None]:
    """Ask at once: nobody else does."""
    return nullcontext()


class Turns:
    """Waits for turns, without a thread for each who waits.

    Args:
        locks: of the processes that share a store.
        clock: for the wait.
    """

    def __init__(self, locks: FileLocks, clock: IReactorTime) -> None:
        self._locks = locks
        self._clock = clock

    @asynccontextmanager
    async def of(self, key: bytes) -> AsyncIterator[None]:
        """Be the one who asks. Who dies has given its turn away; where no lock can be had, all ask.

        Args:
            key: of the question.
        """
        pause, waited = POLL_SECONDS, 0.0
        with ExitStack() as held:
            while waited < PATIENCE_SECONDS and not self._try(held, key):
                await deferLater(self._clock, pause)
                waited += pause
                pause = min(2 * pause, MAX_POLL_SECONDS)
            yield

    def _try(self, held: ExitStack, key: bytes) -> bool:
        """Whether nobody else holds the lock, which is held now."""
        try:
            with ExitStack() as attempt:
                if not attempt.enter_context(self._locks.tried(key.hex())):
                    return False
                held.push(attempt.pop_all())
        except OSError as error:
            _log.error("workers cannot take turns at asking: {reason}", reason=error.strerror)
        return True
