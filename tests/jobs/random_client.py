"""A client that sends valid and invalid requests of a tenant as fast as it can, chosen by a seed."""

from __future__ import annotations

import json
import socket
from collections import Counter, deque
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from image_service.jobs.model import ImageType, JobType
from tests.jobs.running_role import API, compose_request
from tests.jobs.tenant_clients import token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from threading import Event

    from tests.jobs.running_role import RunningRole

WORKER_API = "/api/image-builder-worker/v1"
MIB = 2**20
MOST_CONFIG_BYTES = 8 * MIB - 1000
MOST_DISK_BYTES = 512 * MIB
"""A size above it is invalid, as `JOBS_MAX_DISK_SIZE`."""

_TIMEOUT_SECONDS = 10
_MOST_OPEN = 20
"""Connections that a client leaves open."""
_MOST_FILE_BYTES = 16 * MIB
_REFUSED = {400, 404, 413, 429, 503, 507}
"""The statuses of refusals; any other 4xx or 5xx is a fault of the role."""
_PARTS = (
    "",
    "/metadata",
    "/logs",
    "/manifests",
    "/sboms",
    "/provenance",
    "/statement",
    "/download",
    "/nothing",
)
_PATHS = (
    f"{API}/",
    f"{API}/composes/%2e%2e/",
    f"{API}/images/x",
    f"{WORKER_API}/jobs/x/inputs/y",
    "//",
    "/%00",
)
_QUERIES = (
    "",
    "?size=1000",
    "?size=1",
    "?size=0",
    "?page=999999999",
    "?page=-1",
    "?status=pending",
    "?x=%ff",
)


class RandomClient:
    """A client of a tenant, to run in a thread of its own.

    Args:
        known: ids of composes by tenant, of all clients.

    Attributes:
        answers: how often it got which status for which method; 0: there was none.
        faults: the answers that no client should get.
    """

    def __init__(
        self, role: RunningRole, tenant: str, seed: str, known: dict[str, list[str]], address: str
    ) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.faults: list[str] = []
        self._role = role
        self._tenant = tenant
        self._known = known
        self._address = address
        self._authorization = f"Bearer {token(tenant)}"
        self._chance = Random(seed)  # noqa: S311 - a test's choices
        self._open: deque[socket.socket] = deque()
        self._jobs: deque[dict[str, Any]] = deque(maxlen=8)

    def run(self, ended: Event) -> None:
        """Send requests until the event."""
        actions: Sequence[tuple[Callable[[], None], int]] = (
            (self._order, 6),
            (self._order_wrongly, 4),
            (self._order_with_large_config, 1),
            (self._list, 6),
            (self._look, 10),
            (self._end, 6),
            (self._take, 4),
            (self._upload, 8),
            (self._report, 4),
            (self._leave_open, 4),
        )
        choices, weights = zip(*actions, strict=True)
        while not ended.is_set():
            self._chance.choices(choices, weights)[0]()
        for connection in self._open:
            connection.close()

    def _order(self) -> None:
        size = self._chance.choice([None, 0, 512 * self._chance.randrange(2**21), MOST_DISK_BYTES + 512])
        kind = self._chance.choice(list(ImageType))
        self._send_order(compose_request(kind, config=self._config(100), size=size))

    def _order_with_large_config(self) -> None:
        config = self._config(self._chance.choice([60_000, MIB, MOST_CONFIG_BYTES]))
        self._send_order(compose_request(self._chance.choice(list(ImageType)), config=config))

    def _config(self, size: int) -> bytes:
        files = [{"path": "/etc/motd", "contents": {"source": f"data:,{'x' * size}"}}]
        return json.dumps({"ignition": {"version": "3.3.0"}, "storage": {"files": files}}).encode()

    def _send_order(self, document: object) -> None:
        status, body = self._send("POST", f"{API}/compose", json.dumps(document).encode())
        if status == 201:
            self._known[self._tenant].append(str(json.loads(body)["id"]))

    def _order_wrongly(self) -> None:
        good: dict[str, Any] = compose_request("minimal-raw")
        text = json.dumps(good)
        bodies: Sequence[Callable[[], str]] = (
            lambda: text[: self._chance.randrange(len(text))],
            lambda: "[" * self._chance.randrange(10_000),
            lambda: json.dumps({**good, "distribution": self._chance.choice([7, None, "x" * 300, "rhel-9"])}),
            lambda: json.dumps({**good, "blueprint": {"name": "x"}}),
            lambda: json.dumps({**good, "koji": {}}),
            lambda: json.dumps({**good, "image_requests": good["image_requests"] * 100}),
            lambda: json.dumps({**good, "x": "y" * self._chance.randrange(MIB)}),
            lambda: text.replace(
                "[]", self._chance.choice(["-1", "1e999", "{}", "NaN", '"\\ud800"', "[[]]"])
            ),
        )
        status, _ = self._send("POST", f"{API}/compose", self._chance.choice(bodies)().encode())
        if status == 201:
            self.faults.append("an invalid order was accepted")

    def _list(self) -> None:
        self._send(
            "GET", API + self._chance.choice(["/composes/", "/images"]) + self._chance.choice(_QUERIES)
        )

    def _look(self) -> None:
        """Ask for a compose: of this tenant, of another one, of none; or for another path."""
        tenant = self._chance.choice(list(self._known))
        ids = self._known[tenant]
        path = self._chance.choice(_PATHS)
        if self._chance.random() < 0.9:
            foreign = str(UUID(int=self._chance.getrandbits(128)))
            compose_id = self._chance.choice(ids[-50:]) if ids else foreign
            path = f"{API}/composes/{compose_id}{self._chance.choice(_PARTS)}"
        status, _ = self._send("GET", path)
        if (
            path.startswith(f"{API}/composes/")
            and tenant != self._tenant
            and status not in {0, 400, 404, 503}
        ):
            self.faults.append(f"{status} for {path}, which is another tenant's")

    def _end(self) -> None:
        """Cancel or delete a compose."""
        ids = self._known[self._tenant]
        if ids:
            compose_id = self._chance.choice(ids[-50:])
            method, part = self._chance.choice([("DELETE", ""), ("POST", "/cancel")])
            self._send(method, f"{API}/composes/{compose_id}{part}")

    def _take(self) -> None:
        types = self._chance.sample(list(JobType), self._chance.randrange(1, len(JobType)))
        document = {"types": types, "arch": "x86_64"}
        status, body = self._send("POST", f"{WORKER_API}/jobs", json.dumps(document).encode())
        if status == 201:
            self._jobs.append(json.loads(body))
        elif self._chance.random() < 0.1:
            self._send("POST", f"{WORKER_API}/workers", b'{"arch": "x86_64"}')

    def _upload(self) -> None:
        """Send a file of a job: of a right or wrong length, in chunks, or cut off."""
        if not self._jobs:
            return
        job = self._chance.choice(self._jobs)
        size = self._chance.choice([0, 5, self._chance.randrange(_MOST_FILE_BYTES)])
        name = self._chance.choice(
            [str(job["args"].get("output")), f"f{self._chance.randrange(99)}", "..", "%00"]
        )
        declared = self._chance.choice([size, size, size + 1, None])
        fields = {} if declared is None else {"Content-Length": str(declared)}
        pieces = _pieces(size)
        self._send("PUT", f"{job['artifact_location']}{name}", pieces, fields, is_cut=declared == size + 1)

    def _report(self) -> None:
        if not self._jobs:
            return
        job = self._chance.choice(self._jobs)
        artifact = {"name": job["args"].get("output"), "size": 5, "sha256": "0" * 64}
        documents: Sequence[object] = (
            {
                "partial": {
                    "progress": {"done": self._chance.randrange(5), "total": self._chance.randrange(5)}
                }
            },
            {"result": {"artifacts": [artifact]}},
            {"result": {"job_error": {"id": 10, "reason": "x" * self._chance.randrange(70_000)}}},
            {"result": {"artifacts": "x"}},
            [],
        )
        if self._chance.random() < 0.5:
            self._send("GET", job["location"])
        else:
            self._send("PATCH", job["location"], json.dumps(self._chance.choice(documents)).encode())

    def _leave_open(self) -> None:
        """Leave a connection open that sends part of a request, or does not read its answer."""
        head = f"Host: localhost\r\nAuthorization: {self._authorization}\r\n"
        upload = (
            f"{self._jobs[-1]['artifact_location']}slow" if self._jobs else f"{WORKER_API}/jobs/x/artifacts/y"
        )
        order_head = f"{head}Content-Type: application/json\r\nContent-Length: 9000000\r\n"
        parts: Sequence[Callable[[], str]] = (
            lambda: "",
            lambda: "GET / HT",
            lambda: f"GET {API}/composes/ HTTP/1.1\r\n{head}",
            lambda: f"GET {API}/composes/ HTTP/1.1\r\n{head}\r\n" * 50,
            lambda: f"POST {API}/compose HTTP/1.1\r\n{order_head}\r\n{'x' * 70_000}",
            lambda: f"PUT {upload} HTTP/1.1\r\n{head}Content-Length: 90000\r\n\r\nx",
        )
        with suppress(OSError):
            connection = self._connect()
            self._open.append(connection)
            connection.sendall(self._chance.choice(parts)().encode())
            with suppress(OSError):
                self._open[0].send(b"x")
        if len(self._open) > _MOST_OPEN:
            self._open.popleft().close()

    def _connect(self) -> socket.socket:
        parts = urlsplit(self._role.url)
        return socket.create_connection(
            (str(parts.hostname), int(parts.port or 0)), _TIMEOUT_SECONDS, (self._address, 0)
        )

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        fields: dict[str, str] | None = None,
        *,
        is_cut: bool = False,
    ) -> tuple[int, bytes]:
        """Send a request; return status and content of the answer, 0 without one.

        Args:
            fields: of the head; None: those of JSON.
            is_cut: the content ends before its length.
        """
        connection = HTTPConnection(
            urlsplit(self._role.url).netloc, timeout=_TIMEOUT_SECONDS, source_address=(self._address, 0)
        )
        headers = {"Authorization": self._authorization}
        headers |= {"Content-Type": "application/json"} if fields is None else fields
        status, content = 0, b""
        with closing(connection), suppress(OSError, HTTPException):
            connection.request(method, path, body, headers, encode_chunked=fields == {})
            if not is_cut:
                answer = connection.getresponse()
                content = answer.read()
                status = answer.status
        self.answers[method, status] += 1
        if status >= 400 and status not in _REFUSED:
            self.faults.append(f"{status} for {method} {path}: {content[:300]!r}")
        return status, content


def _pieces(size: int) -> Iterable[bytes]:
    piece = b"x" * 65536
    while size > 0:
        yield piece[:size]
        size -= len(piece)
