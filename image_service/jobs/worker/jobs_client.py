"""A client of the worker API, version 1."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

import attrs

from image_service.core.errors import NotFound, Unavailable
from image_service.jobs.worker.requests import ServerRefusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.response import HttpResponse
    from image_service.jobs.worker.requests import ServerRequests

API = "/api/image-builder-worker/v1"
_POLL_SECONDS = 120.0  # beyond the 20 s that the server waits for a job
_ANSWER_SECONDS = 30.0
_TRANSFER_SECONDS = 120.0  # a store may need a while for the last bytes
_UNKNOWN_WORKERS = {17, 18}
_JOB_NOT_RUNNING = 6


@attrs.frozen
class ReceivedJob:
    """A job that the server has handed to this worker.

    Args:
        id: UUID.
        type: ``customize``, ``convert``, ``import`` or ``upload``.
        location: path of this attempt; a secret, because it has the token.
        artifact_location: to which the names of its artifacts are appended.
        takes_files: the server may take artifacts by their path on this machine.
    """

    id: str
    type: str
    arguments: Mapping[str, Any] = attrs.field(repr=False)
    location: str = attrs.field(repr=False)
    artifact_location: str = attrs.field(repr=False)
    takes_files: bool = False


@attrs.frozen
class AcceptedJobs:
    """The jobs that a worker accepts.

    Args:
        architecture: of images, by its RPM name.
        tenant: ``ANY``: jobs of all tenants; None: those of the token's.
        isolation: of the worker's programs; None: it is not reported.
    """

    types: tuple[str, ...]
    architecture: str
    tenant: str | None = None
    isolation: str | None = None


class JobsClient:
    """Sends requests to the worker API. May be used in several threads.

    Each method raises as `ServerRequests.ask` does. NotFound about a job: its attempt has ended.
    """

    def __init__(self, requests: ServerRequests, accepted: AcceptedJobs) -> None:
        self._requests = requests
        self._accepted = accepted
        self._base = f"{requests.prefix}{API}/"
        self._registration = threading.Lock()
        self._worker_id: str | None = None

    def refresh(self, interruption: Interruption) -> None:
        """Report that this worker is alive; register again if the server does not know it."""
        worker_id = self._register(interruption)
        try:
            self._ask("POST", f"workers/{worker_id}/status", interruption=interruption)
        except ServerRefusal as error:
            if error.number not in _UNKNOWN_WORKERS:
                raise
            self._worker_id = None
            self._register(interruption)

    def _register(self, interruption: Interruption) -> str:
        """Return the id of this worker, which it gets when it first needs it."""
        with self._registration:
            if self._worker_id is None:
                accepted = self._accepted
                document = {"arch": accepted.architecture}
                if accepted.isolation:
                    document["isolation"] = accepted.isolation
                answer = self._ask("POST", "workers", document, interruption=interruption)
                self._worker_id = str(_member(answer, "worker_id"))
            return self._worker_id

    def poll(self, interruption: Interruption) -> ReceivedJob | None:
        """Wait for a job; None: there was none in time."""
        document = {
            "types": self._accepted.types,
            "arch": self._accepted.architecture,
            "worker_id": self._register(interruption),
            **({"tenant": self._accepted.tenant} if self._accepted.tenant else {}),
        }
        job = self._ask("POST", "jobs", document, seconds=_POLL_SECONDS, interruption=interruption)
        if job is None:
            return None
        location, artifact_location = (
            urlsplit(urljoin(self._base, str(_member(job, name)))).path
            for name in ("location", "artifact_location")
        )
        names = str(_member(job, "id")), str(_member(job, "type"))
        return ReceivedJob(
            *names, job.get("args") or {}, location, artifact_location, job.get("takes_files") is True
        )

    def is_cancelled(self, job: ReceivedJob, interruption: Interruption) -> bool:
        """Send a heartbeat of a job; return True if the job is cancelled."""
        return bool(_member(self._ask("GET", job.location, interruption=interruption), "canceled"))

    def report(self, job: ReceivedJob, progress: Mapping[str, object], interruption: Interruption) -> None:
        """Report the progress of a job."""
        self._update(job, {"partial": {"progress": progress}}, interruption)

    def finish(self, job: ReceivedJob, result: Mapping[str, object], interruption: Interruption) -> None:
        """End a job."""
        self._update(job, {"result": result}, interruption)

    def open_input(
        self, job: ReceivedJob, name: str, offset: int, interruption: Interruption
    ) -> AbstractContextManager[HttpResponse]:
        """Return the answer with an input, from an offset on; status 200: from its begin."""
        fields = {"Range": f"bytes={offset}-"} if offset else {}
        path = f"{job.location}/inputs/{quote(name)}"
        return self._requests.open("GET", path, fields, seconds=_TRANSFER_SECONDS, interruption=interruption)

    def send_artifact(self, job: ReceivedJob, path: Path, sha256: str, interruption: Interruption) -> None:
        """Send an artifact of a job: the path of its file, if the server takes that, or else its content.

        Args:
            path: of the file, whose name is the artifact's; it is not changed any more.
            sha256: of the file, in hexadecimal.
        """
        target = job.artifact_location + quote(path.name)
        if job.takes_files:
            document = {"path": str(path), "sha256": sha256}
            answer = self._ask("POST", target, document, seconds=_TRANSFER_SECONDS, interruption=interruption)
            if _member(answer, "taken"):
                return
        digest = base64.b64encode(bytes.fromhex(sha256)).decode()
        fields = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(path.stat().st_size),
            "Repr-Digest": f"sha-256=:{digest}:",
        }
        with (
            path.open("rb") as file,
            self._requests.open(
                "PUT", target, fields, file, seconds=_TRANSFER_SECONDS, interruption=interruption
            ),
        ):
            pass

    def _update(self, job: ReceivedJob, document: Mapping[str, object], interruption: Interruption) -> None:
        try:
            self._ask("PATCH", job.location, document, interruption=interruption)
        except ServerRefusal as error:
            if error.number == _JOB_NOT_RUNNING:
                raise NotFound(error.detail) from None
            raise

    def _ask(
        self,
        method: str,
        path: str,
        document: object | None = None,
        *,
        seconds: float = _ANSWER_SECONDS,
        interruption: Interruption,
    ) -> Any:  # noqa: ANN401 - JSON
        return self._requests.ask(
            method, urljoin(self._base, path), document, seconds=seconds, interruption=interruption
        )


def _member(answer: Any, name: str) -> object:  # noqa: ANN401 - JSON
    """Return a member of an answer; Unavailable if something else than the worker API has answered."""
    if not isinstance(answer, dict) or name not in answer:
        raise Unavailable(f"the server's answer has no {name}, as the worker API's has")
    return answer[name]
