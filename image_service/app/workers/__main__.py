"""``python -m image_service.app.workers``: one worker; the supervisor starts it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.stdio import StandardIO
from twisted.logger import globalLogBeginner

from image_service.app.service import ImageService
from image_service.app.shared_resources import SharedResources
from image_service.app.workers.assignment import FIRST_LISTENER, HEARS, MEMORY, SAYS, SLOTS, Assignment
from image_service.app.workers.channel import Channel
from image_service.app.workers.process import ENDING
from image_service.app.workers.shared_memory import SharedMemory
from image_service.app.workers.shared_slots import SharedConnectionCounter, SharedSlotPool
from image_service.concurrency.coordination import LOCKS_FILE, SharedMemoryCoordination
from image_service.errors import Unavailable
from image_service.observability.log import WorkerTag, observer
from image_service.observability.merging import export
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort

    from image_service.observability.metrics import Metrics
    from image_service.serving.application import Page


class Worker:
    """A service among others.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        assignment: what the supervisor says.
    """

    def __init__(self, reactor: EPollReactor, settings: Settings, assignment: Assignment) -> None:
        self._asking: list[Deferred[Page]] = []
        hears: dict[str, Callable[[Any], None]] = {
            "cover": self._cover,
            "leave": self._leave,
            "count": self._count,
            "page": self._take_page,
            "ping": lambda _: self._channel.say("pong"),
            "end": self._end,
        }
        self._channel = Channel(hears, lambda: self._end(None))
        self._assignment = assignment
        self._sockets = {place: _sockets(assignment, place) for place in range(assignment.workers)}
        own = self._sockets.pop(assignment.worker)
        self._covered: dict[int, list[IListeningPort]] = {}
        self.service = ImageService(
            reactor,
            _part(settings, assignment.workers),
            standalone=assignment.stand_in is not None,
            sockets=own,
            share=self._share(reactor, settings.storage.data_dir),
        )
        StandardIO(self._channel, HEARS, SAYS, reactor)  # type: ignore[call-arg]  # mypy reads that of Windows

    def _share(self, reactor: EPollReactor, data_dir: Path) -> SharedResources:
        memory, assignment = SharedMemory(MEMORY), self._assignment
        row = memory.row(assignment.worker)
        rows = [memory.row(worker) for worker in range(assignment.workers)]
        return SharedResources(
            leads=assignment.worker == 0,
            supply=lambda limit: SharedSlotPool(reactor, SLOTS, limit, row),
            headcount=SharedConnectionCounter(row, rows),
            coordination=SharedMemoryCoordination(memory.versions, data_dir / LOCKS_FILE, reactor),
            stand_in=assignment.stand_in,
            page=self._ask_for_page,
            serving=lambda: self._channel.say("serving"),
        )

    def _cover(self, place: int) -> None:
        self._covered[place] = self.service.listen(each.dup() for each in self._sockets[place])

    def _leave(self, place: int) -> None:
        self.service.ignore(self._covered.pop(place))

    def _count(self, _: None) -> None:
        self._channel.say("counted", export(self.service.metrics.collect()))

    def _ask_for_page(self, _: Metrics) -> Deferred[Page]:
        """Have the supervisor make it, which knows all workers."""
        page: Deferred[Page] = Deferred()
        self._asking.append(page)
        self._channel.say("page")
        return page

    def _take_page(self, page: Any) -> None:  # noqa: ANN401 - JSON
        asking, self._asking = self._asking, []  # nobody, if it was the one here before this one who asked
        for each in asking:
            if page is None:
                each.errback(Unavailable("the supervisor's log tells why"))
            else:
                body, content_type = page
                each.callback((body.encode(), content_type))

    def _end(self, number: int | None) -> None:
        for each in chain.from_iterable(self._sockets.values()):
            each.close()  # else those who have stopped to listen would still be connected to
        self.service.ending.end(number)


def _sockets(assignment: Assignment, place: int) -> list[socket.socket]:
    first = FIRST_LISTENER + place * assignment.ports
    sockets = [socket.socket(fileno=first + port) for port in range(assignment.ports)]
    for each in sockets:
        each.setblocking(False)  # noqa: FBT003 - its signature. It is so already, but a copy would undo that
    return sockets


def _part(settings: Settings, workers: int) -> Settings:
    """What one of several may take of what all may take together."""
    upstream, snapshots = settings.upstream, settings.snapshots
    return attrs.evolve(
        settings,
        upstream=attrs.evolve(upstream, concurrency=max(1, upstream.concurrency // workers)),
        snapshots=attrs.evolve(snapshots, cache_bytes=snapshots.cache_bytes // workers),
    )


def main() -> None:
    """Run until the supervisor says that this is the end, or is gone."""
    from twisted.internet import reactor as installed  # noqa: PLC0415, TID251 - an entry point

    reactor = cast("EPollReactor", installed)
    for number in ENDING:  # a terminal sends it to all: the supervisor tells us
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # or what this process starts could not be ended
    assignment = Assignment.loads(sys.argv[1])
    globalLogBeginner.beginLoggingTo([WorkerTag(observer(), assignment.worker)])
    settings = Settings.from_environment(os.environ, standalone=assignment.stand_in is not None)
    service = Worker(reactor, settings, assignment).service
    reactor.callWhenRunning(service.startService)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run(installSignalHandlers=False)


main()
