"""The worker: slots, each of which takes one job after another."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import ImageServiceError
from image_service.jobs.worker.running_job import RunningJob

if TYPE_CHECKING:
    from image_service.jobs.worker.jobs_client import ReceivedJob
    from image_service.jobs.worker.running_job import JobTools

_REFRESH_SECONDS = 60.0
_PAUSE_SECONDS = 0.1  # between two polls, in case that the server does not wait
_WATCH_SECONDS = 0.2


class JobWorker:
    """Takes jobs and runs them.

    Args:
        slots: jobs at a time.
        only_one: end after one job.
    """

    def __init__(self, tools: JobTools, slots: int, *, only_one: bool = False) -> None:
        self._tools = tools
        self._slots = slots
        self._only_one = only_one
        self._backoff = Backoff(max_seconds=15)
        self._is_stopped = False
        self._is_draining = False
        self._stopping = Interruption()
        self._polling = Interruption()
        self._lock = threading.Lock()
        self._jobs: set[Interruption] = set()

    def stop(self) -> None:
        """End `run` and its jobs; the handler of a signal may call this."""
        self._is_stopped = True

    def drain(self) -> None:
        """Take no further job, and end `run` after the present ones; a signal's handler may call this."""
        self._is_draining = True

    def run(self) -> bool:
        """Work until `stop` or `drain` is called, or the only job is done.

        Returns:
            False after a fault, which has ended a slot.
        """
        slots = [threading.Thread(target=self._work, name=f"slot {number}") for number in range(self._slots)]
        threads = [*slots, threading.Thread(target=self._refresh, name="registration")]
        for thread in threads:
            thread.start()
        while not self._is_stopped and not self._is_draining and all(slot.is_alive() for slot in slots):
            slots[0].join(_WATCH_SECONDS)
        self._polling.interrupt()
        while self._is_draining and not self._is_stopped and (busy := [s for s in slots if s.is_alive()]):
            busy[0].join(_WATCH_SECONDS)
        self._stopping.interrupt()
        with self._lock:
            for job in self._jobs:
                job.interrupt()
        for thread in threads:
            thread.join()
        return self._is_stopped or self._is_draining

    def _work(self) -> None:
        """Take jobs, and run each before the next is taken."""
        failures = 0
        with suppress(Interrupted):
            while not self._is_stopped and not self._is_draining:
                self._tools.scratch.wait_for_room(self._polling)
                try:
                    job = self._tools.client.poll(self._polling)
                    failures = 0
                except ImageServiceError as error:
                    failures += 1
                    self._pause_after(error, failures, self._polling)
                    continue
                if job is None:
                    self._polling.wait(_PAUSE_SECONDS)
                    continue
                self._run_job(job)
                self._is_stopped |= self._only_one

    def _run_job(self, job: ReceivedJob) -> None:
        interruption = Interruption()
        with self._lock:
            self._stopping.raise_if_interrupted()
            self._jobs.add(interruption)
        try:
            RunningJob(job, self._tools, interruption).run()
        finally:
            with self._lock:
                self._jobs.remove(interruption)

    def _refresh(self) -> None:
        """Report to the server at intervals that this worker is alive."""
        failures = 0
        with suppress(Interrupted):
            while True:
                try:
                    self._tools.client.refresh(self._stopping)
                    failures = 0
                    self._stopping.wait(_REFRESH_SECONDS)
                except ImageServiceError as error:
                    failures += 1
                    self._pause_after(error, failures, self._stopping)

    def _pause_after(self, error: ImageServiceError, failures: int, interruption: Interruption) -> None:
        if failures == 1:
            self._tools.warn(error.detail)
        interruption.wait(self._backoff.delay_seconds(failures, error.retry_after_seconds))
