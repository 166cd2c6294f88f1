"""``python -m image_service.app.processes``: one serving process; the supervisor starts it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.stdio import StandardIO
from twisted.logger import Logger, globalLogBeginner

from image_service.app.processes.serving_process import (
    CONTROL_IN,
    CONTROL_OUT,
    CREDENTIALS,
    FIRST_LISTENER,
    MEMORY,
    SHUTDOWN_SIGNALS,
    SLOTS,
    SUPERVISED_SIGNALS,
    Assignment,
)
from image_service.app.reactor import get_reactor
from image_service.app.reload import read_configuration
from image_service.app.service import ImageService
from image_service.app.shared_resources import SharedResources
from image_service.common.concurrency.coordination import LOCKS_FILE, SharedMemoryCoordination
from image_service.common.concurrency.signals import UNUSED, ignore_signals
from image_service.core.errors import ConfigurationError, Unavailable
from image_service.server.admin.admin_api import AdminApi, api_routes
from image_service.server.admin.links_api import LinksApi
from image_service.server.observability.log import ProcessTag, observer, set_level
from image_service.server.observability.merging import export
from image_service.server.processes.channel import Channel
from image_service.server.processes.environment import read_credentials
from image_service.server.processes.forwarding import QUERY, respond_to_forwarded
from image_service.server.processes.shared_state import SharedMemory, SharedSlotPool
from image_service.server.transport.admission.counts import Counts
from image_service.server.web_api.router import ApiRouter
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort
    from twisted.python.failure import Failure

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.activity import Collect
    from image_service.server.admin.state import ServingState
    from image_service.server.observability.metrics import Metrics
    from image_service.server.serving.pages import Page

_log = Logger()


class ServiceInProcess:
    """An image service that shares its ports and limits with others."""

    def __init__(self, reactor: EPollReactor, settings: Settings, assignment: Assignment) -> None:
        self._assignment = assignment
        self._pages: list[Deferred[Page]] = []
        self._adopted: dict[int, list[IListeningPort]] = {}
        self._sockets = {number: _sockets(assignment, number) for number in range(assignment.processes)}
        self._channel = Channel(
            {
                "adopt": self._adopt,
                "release": lambda number: self.service.release(self._adopted.pop(number)),
                "collect": lambda _: self._channel.send("metrics", export(self.service.metrics.collect())),
                "activity": lambda _: self._channel.send("activity", self.service.activity.collect()),
                "page": self._page_received,
                "query": self._respond,
                "log_level": set_level,
                "base_url": self._set_base_url,
                "ping": lambda _: self._channel.send("pong"),
                "reload": self._reload,
                "stop": self._stop,
            },
            lambda: self._stop(None),
        )
        self.service = ImageService(
            reactor,
            settings.of_one_process(),
            standalone=assignment.stand_in is not None,
            sockets=self._sockets.pop(assignment.number),
            shared=self._shared_resources(reactor, settings.storage.data_dir),
        )
        self._set_base_url(assignment.base_url)
        StandardIO(self._channel, CONTROL_IN, CONTROL_OUT, reactor)  # type: ignore[call-arg]  # mypy reads that of Windows

    def _shared_resources(self, reactor: EPollReactor, data_dir: Path) -> SharedResources:
        memory, assignment = SharedMemory(MEMORY), self._assignment
        rows = [memory.row(number) for number in range(assignment.processes)]
        return SharedResources(
            is_leader=assignment.number == 0,
            counts=Counts(memory.row(assignment.number), rows),
            slot_pool=partial(SharedSlotPool, reactor, SLOTS),
            coordination=SharedMemoryCoordination(memory.versions, data_dir / LOCKS_FILE, reactor),
            stand_in=assignment.stand_in,
            metrics_page=self._request_page,
            start_admin=self._state_received,
            serving=lambda: self._channel.send("serving"),
            set_status=lambda text: self._channel.send("status", text),
        )

    def _set_base_url(self, url: str) -> None:
        self.service.base_url.url = url

    def _adopt(self, number: int) -> None:
        self._adopted[number] = self.service.adopt(each.dup() for each in self._sockets[number])

    def _request_page(self, _: Metrics) -> Deferred[Page]:
        """Have the supervisor render it, which has the metrics of all serving processes."""
        page: Deferred[Page] = Deferred()
        self._pages.append(page)
        self._channel.send("page")
        return page

    def _page_received(self, page: Any) -> None:  # noqa: ANN401 - JSON
        pages, self._pages = self._pages, []  # none, if the process before this one requested it
        for each in pages:
            if page is None:
                each.errback(Unavailable("the supervisor cannot render the metrics; see its log"))
            else:
                body, content_type = page
                each.callback((body.encode(), content_type))

    def _state_received(
        self,
        _parts: PartsStack,
        settings: Settings,
        state: ServingState,
        *_: Collect | Metrics | AdminApi | None,
    ) -> None:
        """Keep the state, for which the supervisor sends queries: it has the administrative listener."""
        self._state = state
        links = LinksApi(state.links, settings.links.max_seconds)
        self._respond_to_request = ApiRouter(api_routes([links])).respond

    def _respond(self, query: Sequence[Any]) -> None:
        number, name, *arguments = query
        if name == QUERY:
            response = Deferred.fromCoroutine(respond_to_forwarded(self._respond_to_request, *arguments))
        else:
            response = Deferred.fromCoroutine(getattr(self._state, name)(*arguments))
        response.addCallback(lambda value: self._channel.send("response", [number, value]))
        response.addErrback(lambda failure: _log.failure("cannot respond to a query", failure))

    def _reload(self, texts: dict[str, str]) -> None:
        def failed(failure: Failure) -> None:
            if isinstance(failure.value, CancelledError):  # it stops
                self._channel.send("reloaded", ([], None))
            elif isinstance(failure.value, ConfigurationError):
                self._channel.send("reloaded", ([], failure.value.detail))
            else:
                _log.failure("unexpected error while reloading", failure=failure)
                self._channel.send("reloaded", ([], "unexpected error; see the log"))

        async def reload() -> None:
            standalone = self._assignment.stand_in is not None
            configuration = read_configuration({**os.environ, **texts}, standalone=standalone)
            self._channel.send("reloaded", (await self.service.reload(configuration), None))

        Deferred.fromCoroutine(reload()).addErrback(failed)

    def _stop(self, signal_number: int | None) -> None:
        for each in chain.from_iterable(self._sockets.values()):
            each.close()  # else the kernel would go on accepting on them
        self.service.shutdown.shut_down(signal_number)


def _sockets(assignment: Assignment, number: int) -> list[socket.socket]:
    first = FIRST_LISTENER + number * assignment.ports
    sockets = [socket.socket(fileno=first + port) for port in range(assignment.ports)]
    for each in sockets:
        each.setblocking(False)  # noqa: FBT003 - its signature. It is so already, but a copy would undo that
    return sockets


def main() -> None:
    """Run until the supervisor stops this process, or exits."""
    reactor = get_reactor()
    for number in SHUTDOWN_SIGNALS:  # a terminal sends them to all processes: the supervisor stops this one
        signal.signal(number, signal.SIG_IGN)
    ignore_signals(signal.SIGHUP, *UNUSED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISED_SIGNALS)  # or child processes could not be stopped
    assignment = Assignment.parse(sys.argv[1])
    os.environ.update(read_credentials(CREDENTIALS))
    globalLogBeginner.beginLoggingTo([ProcessTag(observer(), assignment.number)])
    settings = Settings.from_environment(os.environ, standalone=assignment.stand_in is not None)
    service = ServiceInProcess(reactor, settings, assignment).service
    reactor.callWhenRunning(service.startService)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run(installSignalHandlers=False)


main()
