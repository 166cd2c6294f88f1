"""A server with the worker API (jobs.md, section 2), whose jobs and faults a test decides."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

API = "/api/image-builder-worker/v1"
TOKEN = "t0ken"
_POLL_SECONDS = 0.3
_WAIT_SECONDS = 60


@attrs.define
class GivenJob:
    """A job, and the reports of its worker.

    Args:
        type: of the job.
        arguments: without ``inputs``, which are made of `inputs`.
        inputs: contents by name.
        is_cancelled: in the reply to the next heartbeat.
        is_over: all requests about it are answered with 404.
    """

    type: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, bytes]
    declares_digests: bool = True
    is_cancelled: bool = False
    is_over: bool = False
    id: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    beats: int = 0
    progress: list[dict[str, Any]] = attrs.field(factory=list)
    artifacts: dict[str, bytes] = attrs.field(factory=dict)
    result: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return ``args``."""
        inputs = {
            name: {
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest() if self.declares_digests else None,
            }
            for name, content in self.inputs.items()
        }
        return {**self.arguments, "inputs": inputs}


class JobServer:
    """The server's state. A test changes it while holding `changed`, or before a worker is started."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: list[GivenJob] = []
        self.waiting: list[GivenJob] = []
        self.workers: set[str] = set()
        self.registrations: list[dict[str, Any]] = []
        self.polls: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.refuses = 0  # the number of requests to answer with 503
        self.takes_files = False  # artifacts may come by the path of their file
        self.links_files = True  # False: their content has to be sent
        self.is_full = False  # artifacts are answered with 507
        self.breaks_inputs = 0  # the number of inputs to interrupt
        self.result_error: dict[str, Any] | None = None  # the answer to results, with status 400
        self.worker_answer: object = None  # instead of the right one
        self.token = TOKEN

    def give(self, job: GivenJob) -> GivenJob:
        """Queue a job."""
        with self.changed:
            self.jobs.append(job)
            self.waiting.append(job)
            self.changed.notify_all()
        return job

    def wait_for(self, is_reached: Any) -> None:
        """Wait until a condition is true; it is looked at after each request."""
        with self.changed:
            assert self.changed.wait_for(is_reached, _WAIT_SECONDS), self.requests

    def finished(self, job: GivenJob) -> dict[str, Any]:
        """Wait for the result of a job, and return it."""
        self.wait_for(lambda: job.result is not None)
        assert job.result is not None
        return job.result


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def address_string(self) -> str:
        return "client"

    def do_POST(self) -> None:
        self._handle()

    do_GET = do_PATCH = do_PUT = do_POST

    def _handle(self) -> None:
        state: JobServer = self.server.state
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.removeprefix(API)
        with state.changed:
            state.requests.append(f"{self.command} {path}")
            if state.refuses > 0:
                state.refuses -= 1
                self._answer(503, {}, {"Retry-After": "0"})
            elif self.headers.get("Authorization") != f"Bearer {state.token}":
                self._fail(401, 401, "not authenticated")
            elif path.startswith("/workers"):
                self._handle_worker(state, path, body)
            elif path == "/jobs":
                self._hand_out(state, json.loads(body))
            else:
                self._handle_job(state, path.split("/")[2:], body)
            state.changed.notify_all()

    def _handle_worker(self, state: JobServer, path: str, body: bytes) -> None:
        if path == "/workers":
            state.registrations.append(json.loads(body))
            state.workers.add(worker := str(uuid.uuid4()))
            self._answer(201, state.worker_answer or {"worker_id": worker})
        elif path.split("/")[2] in state.workers:
            self._answer(200, {})
        else:
            self._fail(400, 18, "unknown worker")

    def _hand_out(self, state: JobServer, poll: dict[str, Any]) -> None:
        state.polls.append(poll)
        state.changed.notify_all()
        state.changed.wait_for(lambda: bool(state.waiting), _POLL_SECONDS)
        job = next((job for job in state.waiting if job.type in poll["types"]), None)
        if job is None:
            self._answer(204)
            return
        state.waiting.remove(job)
        location = f"{API}/jobs/{job.id}"
        self._answer(
            201,
            {
                "id": job.id,
                "kind": "RequestJob",
                "href": f"{API}/jobs",
                "type": job.type,
                "location": location,
                "artifact_location": f"{location}/artifacts/",
                "args": job.document(),
                "takes_files": state.takes_files,
            },
        )

    def _handle_job(self, state: JobServer, words: list[str], body: bytes) -> None:
        job = next((job for job in state.jobs if job.id == words[0]), None)
        if job is None or job.is_over:
            self._fail(404, 5, "no such job")
        elif self.command == "PUT":
            digest = self.headers["Repr-Digest"]
            assert digest, "no digest"
            if state.is_full:
                self._fail(507, 507, "There is no room for the artifact")
                return
            job.artifacts[words[2]] = body
            self._answer(200, {})
        elif self.command == "POST":
            assert state.takes_files
            if not state.links_files:
                self._answer(200, {"taken": False})
                return
            if state.is_full:
                self._fail(507, 507, "There is no room for the artifact")
                return
            taken = json.loads(body)
            content = Path(taken["path"]).read_bytes()
            assert taken["sha256"] == hashlib.sha256(content).hexdigest()
            job.artifacts[words[2]] = content
            self._answer(200, {"taken": True})
        elif self.command == "PATCH":
            self._update(state, job, json.loads(body))
        elif words[1:2] == ["inputs"]:
            self._send_input(state, job.inputs[words[2]])
        else:
            job.beats += 1
            self._answer(200, {"id": job.id, "kind": "JobStatus", "href": "", "canceled": job.is_cancelled})

    def _update(self, state: JobServer, job: GivenJob, document: dict[str, Any]) -> None:
        assert len(document) == 1
        if partial := document.get("partial"):
            job.progress.append(partial["progress"])
        elif state.result_error and "job_error" not in document["result"]:
            self._answer(400, state.result_error)
            return
        else:
            job.result = document["result"]
            job.is_over = True
        self._answer(200, {})

    def _send_input(self, state: JobServer, content: bytes) -> None:
        offset = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        part = content[offset:]
        self.send_response(206 if offset else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if state.breaks_inputs > 0:
            state.breaks_inputs -= 1
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
        else:
            self.wfile.write(part)

    def _fail(self, status: int, number: int, reason: str) -> None:
        self._answer(status, {"code": f"IMAGE-BUILDER-WORKER-{number}", "reason": reason, "message": reason})

    def _answer(
        self, status: int, document: object | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        content = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("client", 0)


@contextmanager
def running_job_server(
    state: JobServer, socket_path: Path | None = None, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve until the block ends; yields the value of ``--server``.

    Args:
        state: that tests and worker share.
        socket_path: of a unix socket; None: on a port of loopback.
        port: 0: any.
        tls: of HTTPS; None: it is HTTP.
    """
    server: Any
    if socket_path:
        server, name = _UnixServer(str(socket_path), _Handler), f"unix:{socket_path}"
    else:
        server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        name = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.state = state
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield name
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
