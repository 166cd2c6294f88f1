"""The supervisor: binds the ports, runs serving processes on them, and serves nothing itself."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import gatherResults
from twisted.logger import Logger

from image_service.app.admin.combined_state import CombinedState
from image_service.app.admin.listener import start_administration
from image_service.app.process_service import ProcessService
from image_service.app.processes.serving_process import Assignment, ServingProcess
from image_service.app.shutdown import stop_with_failure
from image_service.app.standalone_mode import configured_images, start_stand_in
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import ConfigurationError
from image_service.server.observability.log import present_level, set_level
from image_service.server.observability.merging import add_up, export, render
from image_service.server.observability.metrics import Metrics
from image_service.server.processes.environment import write_credentials
from image_service.server.processes.process_slot import ProcessSlot
from image_service.server.processes.shared_state import (
    SharedMemory,
    create_memory,
    create_slots,
    return_resources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twisted.internet.defer import Deferred
    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from image_service.app.reload import Configuration
    from image_service.server.admin.activity import Collected
    from image_service.server.observability.merging import Exported
    from image_service.server.processes.process_slot import Process
    from image_service.server.serving.pages import Page
    from image_service.settings.settings import Settings

_log = Logger()

KILL_SECONDS = 1
"""After the second signal a serving process that has not exited is killed."""


class Supervisor(ProcessService):
    """Runs ``WORKERS`` processes that serve together, and the embedded stand-in for assisted-service."""

    def __init__(
        self,
        reactor: EPollReactor,
        settings: Settings,
        *,
        standalone: bool,
        spawn: Callable[..., Process] = ServingProcess,
    ) -> None:
        super().__init__(reactor, settings, self._force, standalone=standalone)
        self._spawn = spawn
        self._slots: list[ProcessSlot] = []
        self._substitutes: dict[int, ProcessSlot] = {}
        """By number of a slot whose process does not serve: the slot whose process accepts its clients."""
        self._is_announced = False
        self._metrics = Metrics()
        self._exited_counts: Exported = []
        self._pages: SingleFlight[str, Page] = SingleFlight()

    async def start_parts(self) -> None:
        """Start the serving processes, in standalone mode after the stand-in."""
        await super().start_parts()
        settings, stand_in, infra_envs = self._settings, None, None
        count = settings.process.workers
        state = CombinedState(self._slots, self.base_url, self._render_metrics, lambda: bool(self.running))
        if self._standalone:
            images = configured_images(settings, standalone=True)
            stand_in, infra_envs = await start_stand_in(
                self._parts, settings, images, self.base_url.get, state.find_family
            )
        self._activity = start_administration(
            self._parts, settings, state, self._collect_activity, self._metrics, infra_envs
        )
        memory = create_memory()
        self._memory = SharedMemory(memory)
        self._download_slots = create_slots(settings.limits.downloads)
        self._write_credentials(self.reloader.texts)
        for descriptor in (memory, self._download_slots):
            self._parts.callback(os.close, descriptor)
        self._parts.callback(lambda: os.close(self._credentials))
        self._metrics.read_gauge("workers", lambda: sum(slot.is_serving for slot in self._slots))
        listeners = [listener.fileno() for each in zip(*self._ports, strict=True) for listener in each]
        for number in range(count):
            make = partial(Assignment, number, count, len(self._ports), stand_in)
            spawn = partial(self._spawn_process, make, memory, listeners)
            self._slots.append(ProcessSlot(self._reactor, number, spawn, self))
        for slot in self._slots:
            slot.start()

    def _write_credentials(self, texts: Mapping[str, str]) -> None:
        """Make the file that serving processes read when they start, with what variables read from files."""
        self._credentials = write_credentials({**os.environ, **texts})

    def _spawn_process(
        self,
        make_assignment: Callable[[str], Assignment],
        memory: int,
        listeners: Sequence[int],
        *callbacks: object,
    ) -> Process:
        assignment = make_assignment(self.base_url.url)
        descriptors = assignment.descriptors(memory, self._download_slots, self._credentials, listeners)
        process = self._spawn(self._reactor, assignment, descriptors, *callbacks)
        if level := present_level():  # which may not be that of the environment: the status page changes it
            process.send("log_level", level)
        return process

    async def reload_parts(self, configuration: Configuration) -> list[str]:
        """Have each serving process reload; those that start from now on get the new configuration.

        Raises:
            ConfigurationError: a process keeps the previous one: a file has changed since it was checked.
        """
        set_level(configuration.settings.log.level)
        previous = self._credentials
        self._write_credentials(configuration.texts)
        os.close(previous)
        changed = await gatherResults([slot.reload(configuration.texts) for slot in self._slots])
        faulty = [str(slot.number) for slot, files in zip(self._slots, changed, strict=True) if files is None]
        if faulty:
            raise ConfigurationError(
                f"serving process {', '.join(faulty)} cannot use the new one, the others do;"
                " correct the files"
            )
        return sorted({name for names in changed for name in names or ()})

    # Events of slots.

    def process_serves(self, slot: ProcessSlot) -> None:
        """Let a serving process accept its own connections."""
        if slot.starts > 1:
            self._metrics.record_process_restart()
        self._assign_substitutes()
        if all(slot.is_serving for slot in self._slots):
            if not self._is_announced:
                self._is_announced = True
                self.announce_page(self._settings.admin, self._settings.tls)
            self.manager.ready()

    def process_exited(self, slot: ProcessSlot) -> None:
        """Return the slots of a process, keep its cumulative metrics, and have another accept its clients."""
        return_resources(self._memory.row(slot.number), self._download_slots)
        self._exited_counts = add_up([self._exited_counts, slot.counts.drain()])
        self._substitutes = {
            number: other for number, other in self._substitutes.items() if other is not slot
        }
        self._assign_substitutes()

    def page_requested(self, slot: ProcessSlot) -> None:
        """Send the page of metrics to a serving process, or null."""

        def failed(failure: Failure) -> None:
            _log.failure("cannot render the metrics", failure=failure)
            slot.send("page", None)

        page = self._render_metrics()
        page.addCallbacks(lambda page: slot.send("page", (page[0].decode(), page[1])), failed)

    def _render_metrics(self) -> Deferred[Page]:
        """Return the page of metrics of all serving processes."""

        async def render_page() -> Page:
            await gatherResults([slot.collect_metrics() for slot in self._slots])
            own = export(self._metrics.collect())
            latest = [slot.counts.latest for slot in self._slots]
            return render(add_up([own, self._exited_counts, *latest]))

        return self._pages.join("page", render_page)

    async def _collect_activity(self) -> Sequence[Collected]:
        """Have each serving process send its records; `activity_received` gets it."""
        await gatherResults([slot.collect_activity() for slot in self._slots])
        return ()

    def activity_received(self, collected: Collected) -> None:
        """Add the records of a serving process, even if they come late."""
        self._activity.merge(collected)

    def status_received(self, text: str) -> None:
        """Pass a serving process's line on to the service manager."""
        self.manager.set_status(text)

    def start_failed(self, status: int | None) -> None:
        """Stop the service: the same fault would keep the other serving processes from starting."""
        _log.critical("no serving process can start")
        stop_with_failure(self._reactor, status or 1)

    def _assign_substitutes(self) -> None:
        """Have another process accept the connections of each that does not serve: they would wait."""
        for slot in self._slots if self.running else ():
            has_substitute = slot.number in self._substitutes
            if slot.is_serving and has_substitute:
                self._substitutes.pop(slot.number).send("release", slot.number)
            elif not (slot.is_serving or has_substitute):
                others = (*self._slots[slot.number :], *self._slots[: slot.number])
                other = next((other for other in others if other.is_serving), None)
                if other is not None:
                    self._substitutes[slot.number] = other
                    other.send("adopt", slot.number)

    # Shutdown.

    async def stop_parts(self) -> None:
        """Stop the serving processes, then the stand-in."""
        self.close_sockets()  # the processes have duplicates; with ours open, the kernel would still accept
        await gatherResults([slot.stop(self.shutdown.signal_number) for slot in self._slots])
        await self._parts.aclose()

    def _force(self) -> None:
        for slot in self._slots:
            slot.send("stop", signal.SIGTERM)
            self._reactor.callLater(KILL_SECONDS, slot.kill)
