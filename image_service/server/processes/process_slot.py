"""The slot of a serving process, which runs in it or will soon be restarted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from image_service.common.concurrency.backoff import Backoff
from image_service.server.processes.process_counts import TIMEOUT_SECONDS, ProcessCounts
from image_service.server.processes.queries import Queries
from image_service.server.processes.watchdog import MAX_UNANSWERED, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.admin.activity import Collected

    Handlers: TypeAlias = Mapping[str, Callable[[Any], None]]

STEADY_SECONDS = 60.0
"""A serving process that has run for so long is restarted with the initial delay."""
RESTARTS = Backoff(min_seconds=0.5, max_seconds=30)
RELOAD_SECONDS = 60.0
"""A serving process that has not responded to a reload for so long is not waited for."""

_log = Logger()


class Process(Protocol):
    """A serving process, as its slot sees it."""

    def send(self, word: str, value: object = None) -> None:
        """Send a word on its channel."""

    def kill(self) -> None:
        """Kill it."""


class SlotObserver(Protocol):
    """Is notified of the events of a slot."""

    def process_serves(self, slot: ProcessSlot) -> None:
        """Its serving process accepts connections."""

    def process_exited(self, slot: ProcessSlot) -> None:
        """Its serving process has exited."""

    def page_requested(self, slot: ProcessSlot) -> None:
        """Its serving process wants the page of metrics, by ``send``."""

    def activity_received(self, collected: Collected) -> None:
        """Its serving process has sent the reads of clients and the failed requests."""

    def status_received(self, text: str) -> None:
        """Its serving process has a line for the service manager."""

    def start_failed(self, status: int | None) -> None:
        """A first serving process exited before it accepted connections, or any because of its configuration.

        Args:
            status: if it exited by itself.
        """


class ProcessSlot:
    """One of ``WORKERS``.

    Args:
        number: of the process, from 0 on.
        spawn: starts a process, given the handlers of its words and a callback for the reason and status of
            its exit. Raises OSError if no process can be started.
    """

    def __init__(
        self,
        clock: IReactorTime,
        number: int,
        spawn: Callable[[Handlers, Callable[[str, int | None], None]], Process],
        observer: SlotObserver,
    ) -> None:
        self.number = number
        self.counts = ProcessCounts(clock)
        self.is_serving = False
        """True if the serving process accepts connections."""
        self.starts = 0
        """How many serving processes were started here."""
        self._clock = clock
        self._spawn = spawn
        self._observer = observer
        self._process: Process | None = None
        self._queries = Queries(clock)
        self._watchdog = Watchdog(clock, lambda: self.send("ping"), self._kill_stuck)
        self._started_at = 0.0
        self._has_served = False
        self._failures = 0
        self._restart: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None
        self._reload: Deferred[list[str] | None] = succeed([])
        self._activity: Deferred[None] = succeed(None)

    def start(self) -> None:
        """Start a serving process."""
        self.starts += 1
        self._restart = None
        self._started_at = self._clock.seconds()
        handlers: Handlers = {
            "serving": self._serving_received,
            "metrics": self.counts.update,
            "page": lambda _: self._observer.page_requested(self),
            "activity": self._activity_received,
            "pong": lambda _: self._watchdog.pong_received(),
            "response": self._queries.response_received,
            "reloaded": lambda response: self._reload_ended(*response),
            "status": self._observer.status_received,
        }
        try:
            self._process = self._spawn(handlers, self._exited)
        except OSError as error:  # such as EAGAIN or ENOMEM, which pass
            self._replace(f"no process could be started: {error.strerror}.")

    def send(self, word: str, value: object = None) -> None:
        """Send a word to the serving process; does nothing if there is none."""
        if self._process is not None:
            self._process.send(word, value)

    def collect_metrics(self) -> Deferred[None]:
        """Fetch the serving process's metrics into ``counts``."""
        return self.counts.collect(lambda: self.send("collect")) if self.is_serving else succeed(None)

    def collect_activity(self) -> Deferred[None]:
        """Have the process send its records; fires when it has, or when it does not respond in time."""
        if not self.is_serving:
            return succeed(None)
        self._activity = Deferred(lambda activity: activity.callback(None))
        self.send("activity")
        return self._activity.addTimeout(TIMEOUT_SECONDS, self._clock)

    def _activity_received(self, collected: Collected) -> None:
        self._observer.activity_received(collected)
        if not self._activity.called:
            self._activity.callback(None)

    def query(self, name: str, *arguments: object, timeout_seconds: float = TIMEOUT_SECONDS) -> Deferred[Any]:
        """Return its response to a query (see `Queries.add`); there must be a process."""
        return self._queries.add(
            name, lambda query: self.send("query", query), *arguments, timeout_seconds=timeout_seconds
        )

    def reload(self, texts: Mapping[str, str]) -> Deferred[list[str] | None]:
        """Have the serving process reload; a fault is logged.

        Returns:
            fires with the names of the changed files when it has, has exited, or does not respond; None: it
            keeps the previous configuration.
        """
        if self._process is None:
            return succeed([])
        self._reload = Deferred(lambda reload: reload.callback([]))
        self.send("reload", texts)
        return self._reload.addTimeout(RELOAD_SECONDS, self._clock)

    def _reload_ended(self, files: list[str], fault: str | None) -> None:
        if fault is not None:
            _log.error(
                "serving process {number} cannot reload, keeping the previous configuration: {fault}",
                number=self.number,
                fault="; ".join(fault.splitlines()),
            )
        if not self._reload.called:
            self._reload.callback(files if fault is None else None)

    def stop(self, signal_number: int | None) -> Deferred[None]:
        """Stop the serving process for good; it drains as long as it responds.

        Args:
            signal_number: that stops the service; None: it was not a signal.

        Returns:
            fires when it has exited.
        """
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._process is None:
            return succeed(None)
        self._stopped = Deferred()
        self._watchdog.start()
        self.send("stop", signal_number)
        return self._stopped

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()

    def _serving_received(self, _: None) -> None:
        self.is_serving = self._has_served = True
        self._watchdog.start()  # not before: starting many takes long, and others have its clients meanwhile
        self._observer.process_serves(self)

    def _kill_stuck(self) -> None:
        _log.error(
            "serving process {number} has not responded to {count} pings; killing it",
            number=self.number,
            count=MAX_UNANSWERED,
        )
        self.kill()

    def _exited(self, reason: str, status: int | None) -> None:
        self._process, self.is_serving = None, False
        self._watchdog.stop()
        self._queries.cancel()
        self._activity.cancel()
        self._reload_ended([], None)
        self._observer.process_exited(self)
        if self._stopped is not None:
            self._stopped.callback(None)
        else:
            self._replace(reason, status)

    def _replace(self, reason: str, status: int | None = None) -> None:
        if not self._has_served or status == os.EX_CONFIG:  # the next one would end the same way
            self._observer.start_failed(status)
            return
        is_steady = self._clock.seconds() - self._started_at > STEADY_SECONDS
        self._failures = 1 if is_steady else self._failures + 1
        seconds = RESTARTS.delay_seconds(self._failures)
        self._restart = self._clock.callLater(seconds, self.start)
        _log.error(
            "serving process {number} has exited: {reason} Restarting it in {seconds:.1f} s.",
            number=self.number,
            reason=reason,
            seconds=seconds,
        )
