"""The requests of a job to the server: heartbeats, and requests that are repeated until they are answered."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import ImageServiceError, NotFound, Unavailable
from image_service.jobs.worker.requests import STORE_DENIED, ServerRefusal, StoreRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.jobs.worker.jobs_client import JobsClient, ReceivedJob

_Result = TypeVar("_Result")

_BACKOFF = Backoff(max_seconds=15)
_MAX_REFUSALS = 5
"""Of the server's object store in a row, within half a minute: credentials are renewed in less."""


@attrs.define(eq=False)
class JobLink:
    """Connects a job and the server.

    Args:
        job: as the server has handed it out.
        interruption: of this job alone; it is set when the server has ended the attempt.
    """

    job: ReceivedJob
    client: JobsClient
    interruption: Interruption
    warn: Callable[[str], None]
    _progress: dict[str, Any] | None = attrs.field(default=None, init=False)
    _wake: threading.Event = attrs.field(factory=threading.Event, init=False)

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Set the progress that the next heartbeat reports; a new phase causes a heartbeat at once."""
        is_new = self._progress is None or self._progress["phase"] != progress["phase"]
        self._progress = progress
        if is_new:
            self._wake.set()

    def persist(self, request: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401 - its own
        """Send a request of `JobsClient` about the job until the server has answered.

        Raises:
            NotFound: the attempt has ended.
            ServerRefusal: the server refuses the request, or its object store does so repeatedly.
            Interrupted: the job has ended.
        """
        failures = refusals = 0
        while True:
            try:
                return request(self.job, *arguments, self.interruption)
            except Unavailable as error:
                failures += 1
                refusals = refusals + 1 if isinstance(error, StoreRefusal) else 0
                if refusals == _MAX_REFUSALS:
                    raise ServerRefusal(error.detail, STORE_DENIED) from None
                if failures == 1:
                    self.warn(f"job {self.job.id}: {error.detail}; trying again")
                self.interruption.wait(_BACKOFF.delay_seconds(failures, error.retry_after_seconds))

    @contextmanager
    def heartbeats(self, beat_seconds: float) -> Iterator[None]:
        """Send heartbeats during the block."""
        ended = Interruption()
        thread = threading.Thread(
            target=self._beat, args=[beat_seconds, ended], name=f"heartbeats {self.job.id}"
        )
        thread.start()
        try:
            yield
        finally:
            ended.interrupt()
            self._wake.set()
            thread.join()

    def _beat(self, beat_seconds: float, ended: Interruption) -> None:
        reported, is_unavailable = None, False
        while True:
            try:
                self._wake.wait(beat_seconds)
                self._wake.clear()
                ended.raise_if_interrupted()
                if self.client.is_cancelled(self.job, ended):
                    self.interruption.interrupt()
                    return
                is_unavailable = False
                progress = self._progress
                if progress is not None and progress != reported:
                    reported = progress
                    self.client.report(self.job, progress, ended)
            except Interrupted:
                return
            except NotFound:
                self.interruption.interrupt()
                return
            except ImageServiceError as error:  # the job continues
                if not is_unavailable:
                    self.warn(f"job {self.job.id}: no heartbeat: {error.detail}")
                is_unavailable = True
