"""Runs a bounded number of transfers at a time, which share progress, pace and the first failure."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from image_service.toolkit.workspace.workspace import Workspace

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

THREADS = 4
_POLL_SECONDS = 0.2


class TransferMeter:
    """Counts bytes of several threads, and keeps them within the rate of the call.

    Args:
        workspace: of the call; a phase of its progress has begun.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._done = 0

    def add(self, count: int) -> None:
        """Add transferred bytes; negative: they have to be transferred again. Waits if they came too fast."""
        with self._lock:
            self._done += count
            self._workspace.progress.set(self._done)
            if count > 0:
                self._workspace.pace(count)


def run_parallel(
    work: Callable[[_Item], None], items: Iterable[_Item], workspace: Workspace, abort: Callable[[], None]
) -> None:
    """Do a piece of work for each item, in some threads; the first failure ends all.

    Args:
        work: is called in a thread.
        items: in the order in which they begin.
        workspace: of the call, whose limits are checked meanwhile.
        abort: lets work that runs end soon.
    """
    with ThreadPoolExecutor(THREADS, "transfer") as executor:
        waiting = {executor.submit(work, item) for item in items}
        try:
            while waiting:
                done, waiting = wait(waiting, _POLL_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                workspace.check()
        except BaseException:
            abort()
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def run_one(work: Callable[[], _Result], workspace: Workspace, abort: Callable[[], None]) -> _Result:
    """Return the result of one piece of work; only a limit of the call aborts, not a failure of the work."""
    with ThreadPoolExecutor(1, "transfer") as executor:
        future = executor.submit(work)
        try:
            while wait([future], _POLL_SECONDS).not_done:
                workspace.check()
        except BaseException:
            abort()
            raise
        return future.result()
