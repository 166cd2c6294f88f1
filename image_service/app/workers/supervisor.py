"""The supervisor: binds the ports, runs workers on them, and serves nothing itself."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import gatherResults
from twisted.logger import Logger

from image_service.app.process_service import ProcessService
from image_service.app.shutdown import stop_with_failure
from image_service.app.standalone_mode import configured_images, start_stand_in
from image_service.app.workers.environment import write_credentials
from image_service.app.workers.shared_state import SharedMemory, create_memory, create_slots, return_resources
from image_service.app.workers.worker_process import Assignment, WorkerProcess
from image_service.app.workers.worker_slot import WorkerSlot
from image_service.concurrency.single_flight import SingleFlight
from image_service.observability.merging import add_up, export, render
from image_service.observability.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.app.workers.worker_slot import Process
    from image_service.observability.merging import Exported
    from image_service.serving.request_handler import Page
    from image_service.settings.settings import Settings

_log = Logger()

KILL_SECONDS = 1
"""After the second signal a worker that has not exited is killed."""


class Supervisor(ProcessService):
    """Runs ``WORKERS`` processes that serve together, and the embedded stand-in for assisted-service."""

    def __init__(
        self,
        reactor: EPollReactor,
        settings: Settings,
        *,
        standalone: bool,
        spawn: Callable[..., Process] = WorkerProcess,
    ) -> None:
        super().__init__(reactor, settings, self._force, standalone=standalone)
        self._spawn = spawn
        self._worker_slots: list[WorkerSlot] = []
        self._substitutes: dict[int, WorkerSlot] = {}
        """By the number of a slot whose worker does not serve: the slot whose worker accepts its clients."""
        self._metrics = Metrics()
        self._exited_counts: Exported = []
        self._pages: SingleFlight[str, Page] = SingleFlight()

    async def start_parts(self) -> None:
        """Start the workers, in standalone mode after the stand-in."""
        settings, stand_in = self._settings, None
        workers = settings.process.workers
        if self._standalone:
            images = configured_images(settings, standalone=True)
            stand_in = await start_stand_in(self._parts, settings, images, self.base_url)
        memory = create_memory()
        self._memory = SharedMemory(memory)
        self._download_slots = create_slots(settings.limits.downloads)
        credentials = write_credentials(os.environ)
        for descriptor in (memory, self._download_slots, credentials):
            self._parts.callback(os.close, descriptor)
        self._metrics.read_gauge("workers", lambda: sum(slot.is_serving for slot in self._worker_slots))
        listeners = [listener.fileno() for each in zip(*self._ports, strict=True) for listener in each]
        for number in range(workers):
            assignment = Assignment(number, workers, len(self._ports), stand_in)
            descriptors = assignment.descriptors(memory, self._download_slots, credentials, listeners)
            spawn = partial(self._spawn, self._reactor, assignment, descriptors)
            self._worker_slots.append(WorkerSlot(self._reactor, number, spawn, self))
        for slot in self._worker_slots:
            slot.start()

    # Events of slots.

    def worker_serves(self, slot: WorkerSlot) -> None:
        """Let a worker accept its own connections."""
        if slot.starts > 1:
            self._metrics.record_worker_restart()
        self._assign_substitutes()

    def worker_exited(self, slot: WorkerSlot) -> None:
        """Return a worker's slots, keep its cumulative metrics, and let another accept its connections."""
        return_resources(self._memory.row(slot.number), self._download_slots)
        self._exited_counts = add_up([self._exited_counts, slot.counts.drain()])
        self._substitutes = {
            number: other for number, other in self._substitutes.items() if other is not slot
        }
        self._assign_substitutes()

    def page_requested(self, slot: WorkerSlot) -> None:
        """Send the page of metrics to a worker, or null."""

        async def render_page() -> Page:
            await gatherResults([slot.collect_metrics() for slot in self._worker_slots])
            own = export(self._metrics.collect())
            latest = [slot.counts.latest for slot in self._worker_slots]
            return render(add_up([own, self._exited_counts, *latest]))

        def failed(failure: Failure) -> None:
            _log.failure("cannot render the metrics", failure=failure)
            slot.send("page", None)

        page = self._pages.join("page", render_page)
        page.addCallbacks(lambda page: slot.send("page", (page[0].decode(), page[1])), failed)

    def start_failed(self) -> None:
        """Stop the service: the same fault would keep the other workers from starting."""
        _log.critical("no worker can start")
        stop_with_failure(self._reactor)

    def _assign_substitutes(self) -> None:
        """Have another worker accept the connections of each that does not serve: they would wait."""
        for slot in self._worker_slots if self.running else ():
            has_substitute = slot.number in self._substitutes
            if slot.is_serving and has_substitute:
                self._substitutes.pop(slot.number).send("release", slot.number)
            elif not (slot.is_serving or has_substitute):
                others = (*self._worker_slots[slot.number :], *self._worker_slots[: slot.number])
                other = next((other for other in others if other.is_serving), None)
                if other is not None:
                    self._substitutes[slot.number] = other
                    other.send("adopt", slot.number)

    # Shutdown.

    async def stop_parts(self) -> None:
        """Stop the workers, then the stand-in."""
        self.close_sockets()  # the workers have duplicates; with ours open, the kernel would go on accepting
        await gatherResults([slot.stop(self.shutdown.signal_number) for slot in self._worker_slots])
        await self._parts.aclose()

    def _force(self) -> None:
        for slot in self._worker_slots:
            slot.send("stop", signal.SIGTERM)
            self._reactor.callLater(KILL_SECONDS, slot.kill)
