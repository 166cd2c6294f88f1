"""A worker's place: somebody works there, or will soon do so again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from image_service.app.workers.counts import Counts
from image_service.app.workers.process import WorkerProcess
from image_service.app.workers.watchdog import MOST_UNANSWERED, Watchdog
from image_service.concurrency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IDelayedCall

    from image_service.app.workers.assignment import Assignment

STEADY_SECONDS = 60.0
"""Who has run for so long, and dies, dies for the first time."""
RESTARTS = Backoff(min_seconds=0.5, max_seconds=30)

_log = Logger()


class Watch(Protocol):
    """Is told what happens in places."""

    def serves(self, place: WorkerSlot) -> None:
        """The worker in it accepts clients."""

    def left(self, place: WorkerSlot) -> None:
        """The worker in it is gone."""

    def asks_for_page(self, place: WorkerSlot) -> None:
        """Its worker wants the page of metrics, by ``say``."""

    def cannot_start(self) -> None:
        """A first worker ended before it had served anybody."""


class WorkerSlot:
    """One worker's place.

    Args:
        reactor: the one that runs.
        assignment: what whoever works here is told.
        descriptors: what whoever works here is given.
        watch: is told what happens here.
    """

    def __init__(
        self,
        reactor: EPollReactor,
        assignment: Assignment,
        descriptors: Mapping[int, int | str],
        watch: Watch,
    ) -> None:
        self.number = assignment.worker
        self.counts = Counts(reactor)
        self.serving = False
        """Whether clients are accepted here."""
        self.starts = 0
        """How many have worked here."""
        self._reactor = reactor
        self._assignment = assignment
        self._descriptors = descriptors
        self._watch = watch
        self._process: WorkerProcess | None = None
        self._watchdog = Watchdog(reactor, lambda: self.say("ping"), self._stuck)
        self._began = 0.0
        self._has_served = False
        self._failures = 0
        self._restart: IDelayedCall | None = None
        self._gone: Deferred[None] | None = None

    def start(self) -> None:
        """Have somebody work here."""
        self.starts += 1
        self._restart = None
        self._began = self._reactor.seconds()
        hears: dict[str, Callable[[Any], None]] = {
            "serving": self._serves,
            "counted": self.counts.take,
            "page": lambda _: self._watch.asks_for_page(self),
            "pong": lambda _: self._watchdog.heard(),
        }
        try:
            self._process = WorkerProcess(
                self._reactor, self._assignment, self._descriptors, hears, self._ended
            )
        except OSError as error:  # such as EAGAIN or ENOMEM, which pass
            self._replace(f"no process could be started: {error.strerror}.")

    def say(self, word: str, value: object = None) -> None:
        """Send a word to whoever works here; where nobody does, nothing happens."""
        if self._process is not None:
            self._process.say(word, value)

    def ask(self) -> Deferred[None]:
        """Ask whoever works here what it has counted, to be found in ``counts``."""
        return self.counts.ask(lambda: self.say("count")) if self.serving else succeed(None)

    def end(self, number: int | None) -> Deferred[None]:
        """End who works here, for good: well, as long as it takes, unless it is stuck.

        Args:
            number: the signal's that ends the service; None: it was none.

        Returns:
            fires when nobody does any more.
        """
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._process is None:
            return succeed(None)
        self._gone = Deferred()
        self._watchdog.start()
        self.say("end", number)
        return self._gone

    def kill(self) -> None:
        """End who works here, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def _serves(self, _: None) -> None:
        self.serving = self._has_served = True
        self._watchdog.start()  # not before: to start many takes long, and others have its clients meanwhile
        self._watch.serves(self)

    def _stuck(self) -> None:
        _log.error(
            "worker {number} has left {count} pings unanswered; it is killed",
            number=self.number,
            count=MOST_UNANSWERED,
        )
        self.kill()

    def _ended(self, how: str) -> None:
        self._process, self.serving = None, False
        self._watchdog.stop()
        self._watch.left(self)
        if self._gone is not None:
            self._gone.callback(None)
        else:
            self._replace(how)

    def _replace(self, how: str) -> None:
        if self._has_served:
            self._start_again(how)
        else:
            self._watch.cannot_start()

    def _start_again(self, how: str) -> None:
        steady = self._reactor.seconds() - self._began > STEADY_SECONDS
        self._failures = 1 if steady else self._failures + 1
        seconds = RESTARTS.delay_seconds(self._failures)
        self._restart = self._reactor.callLater(seconds, self.start)
        _log.error(
            "worker {number} is gone: {how} Another takes its place in {seconds:.1f} s.",
            number=self.number,
            how=how,
            seconds=seconds,
        )
