"""The supervisor: takes the ports, has workers serve on them, and serves nothing itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.logger import Logger

from image_service.app.base_images import configured_images
from image_service.app.lifecycle import Running
from image_service.app.ports import raise_descriptor_limit, take_ports
from image_service.app.shutdown import ShutdownHandler, end_with_failure
from image_service.app.stand_in import StandIn, start_stand_in
from image_service.app.workers import shared_memory
from image_service.app.workers.assignment import Assignment
from image_service.app.workers.shared_slots import create_slots, return_holdings
from image_service.app.workers.worker_slot import WorkerSlot
from image_service.concurrency.single_flight import SingleFlight
from image_service.observability.merging import add_up, export, render
from image_service.observability.metrics import Metrics

if TYPE_CHECKING:
    import socket

    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.observability.merging import Exported
    from image_service.serving.application import Page
    from image_service.settings.settings import Settings

_log = Logger()

CUT_SECONDS = 1
"""What is left, at the second signal, to a worker that does not end."""


class Supervisor(Service):
    """Several processes that serve as one.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        standalone: with the embedded stand-in, which runs here.
    """

    def __init__(self, reactor: EPollReactor, settings: Settings, *, standalone: bool) -> None:
        self._reactor = reactor
        self._settings = settings
        self._standalone = standalone
        self._ending = ShutdownHandler(reactor, self._hasten)
        self._running = Running(reactor)
        self._ports: list[list[socket.socket]] = []
        self._places: list[WorkerSlot] = []
        self._covers: dict[int, WorkerSlot] = {}
        """Who accepts the clients of a place that nobody works in, by its number."""
        self._metrics = Metrics()
        self._departed: Exported = []
        self._pages: SingleFlight[str, Page] = SingleFlight()
        self._started: Deferred[None] = succeed(None)

    def privilegedStartService(self) -> None:
        """Take the ports, so that one in use ends the start at once.

        Raises:
            SystemExit: one cannot be had.
        """
        Service.privilegedStartService(self)
        self._reactor.callWhenRunning(self._ending.on_signals)
        raise_descriptor_limit()
        self._ports = take_ports(self._settings, self._settings.process.workers)

    def startService(self) -> None:
        """Start the workers."""
        Service.startService(self)
        self._started = Deferred.fromCoroutine(self._start())
        self._started.addErrback(self._give_up)

    def stopService(self) -> Deferred[None]:
        """End the workers, each of which goes away as one process does."""
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        stand_in = await self._stand_in() if self._standalone else None
        self._memory = shared_memory.create()
        self._shared = shared_memory.SharedMemory(self._memory)
        self._slots = create_slots(self._settings.limits.downloads)
        self._metrics.read_gauge("workers", lambda: sum(place.serving for place in self._places))
        self._places = [self._place(number, stand_in) for number in range(self._settings.process.workers)]
        for place in self._places:
            place.start()

    async def _stand_in(self) -> StandIn:
        settings = self._settings
        base_url = settings.base_url(self._ports[0][0].getsockname()[1])
        entries = configured_images(settings, standalone=True)
        return await start_stand_in(self._reactor, settings, self._running, entries, base_url)

    def _place(self, number: int, stand_in: StandIn | None) -> WorkerSlot:
        listeners = [listener.fileno() for place in zip(*self._ports, strict=True) for listener in place]
        assignment = Assignment(number, self._settings.process.workers, len(self._ports), stand_in)
        descriptors = assignment.descriptors(self._memory, self._slots, listeners)
        return WorkerSlot(self._reactor, assignment, descriptors, self)

    # What happens in places.

    def serves(self, place: WorkerSlot) -> None:
        """Let its worker have its clients to itself."""
        if place.starts > 1:
            self._metrics.record_worker_restart()
        self._arrange_covers()

    def left(self, place: WorkerSlot) -> None:
        """Give back what its worker had, keep what it had counted, and have another accept its clients."""
        return_holdings(self._shared.row(place.number), self._slots)
        self._departed = add_up([self._departed, place.counts.part()])
        self._covers = {number: cover for number, cover in self._covers.items() if cover is not place}
        self._arrange_covers()

    def _arrange_covers(self) -> None:
        """Have somebody accept the clients of each place, who would else wait until it is taken again."""
        for place in self._places if self.running else ():
            covered = place.number in self._covers
            if place.serving and covered:
                self._covers.pop(place.number).say("leave", place.number)
            elif not (place.serving or covered):
                self._cover(place)

    def _cover(self, place: WorkerSlot) -> None:
        for other in (*self._places[place.number :], *self._places[: place.number]):
            if other.serving:
                self._covers[place.number] = other
                other.say("cover", place.number)
                return

    def asks_for_page(self, place: WorkerSlot) -> None:
        """Give the page to its worker, or tell that there is none."""

        def failed(failure: Failure) -> None:
            _log.failure("the page of metrics could not be made", failure=failure)
            place.say("page", None)

        page = self._pages.join("page", self._page)
        page.addCallbacks(lambda page: place.say("page", (page[0].decode(), page[1])), failed)

    def cannot_start(self) -> None:
        """End: what keeps a worker from starting keeps the others too."""
        _log.critical("a worker cannot start")
        end_with_failure(self._reactor)

    async def _page(self) -> Page:
        await gatherResults([place.ask() for place in self._places])
        own = export(self._metrics.collect())
        return render(add_up([own, self._departed, *(place.counts.latest for place in self._places)]))

    # The end.

    async def _stop(self) -> None:
        await self._started
        for listener in (listener for port in self._ports for listener in port):
            listener.close()  # the workers have theirs; with ours, ending to listen would end nothing
        await gatherResults([place.end(self._ending.number) for place in self._places])
        await self._running.aclose()
        _log.info("stopped")

    def _hasten(self) -> None:
        for place in self._places:
            place.say("end", signal.SIGTERM)
            self._reactor.callLater(CUT_SECONDS, place.kill)

    def _give_up(self, failure: Failure) -> None:
        _log.failure("the service cannot start", failure=failure)
        end_with_failure(self._reactor)
