"""A worker that makes nothing: it does each step when a test says so."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from tests.acceptance.service import Answer, fetch

if TYPE_CHECKING:
    from tests.jobs.running_role import RunningRole

API = "/api/image-builder-worker/v1"
REQUEST = {"types": ["customize", "convert"], "arch": "x86_64"}
CONTENT = b"no disk at all"


@attrs.frozen
class TakenJob:
    """A job that the double has."""

    role: RunningRole
    document: dict[str, Any]

    @property
    def compose_id(self) -> str:
        return str(self.document["compose_id"])

    def beat(self) -> Answer:
        return self._call("GET")

    def upload(self) -> Answer:
        url = self.role.url + self.document["artifact_location"] + self.document["args"]["output"]
        return fetch(url, "PUT", headers={"Content-Type": "application/octet-stream"}, body=CONTENT)

    def finish(self) -> Answer:
        declared = {
            "name": self.document["args"]["output"],
            "size": len(CONTENT),
            "sha256": hashlib.sha256(CONTENT).hexdigest(),
        }
        return self._call("PATCH", {"result": {"artifacts": [declared]}})

    def do(self) -> None:
        """Do the whole job."""
        for answer in (self.upload(), self.finish()):
            assert answer.status == 200, answer.body

    def _call(self, method: str, document: object = None) -> Answer:
        body = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"} if body else None
        return fetch(self.role.url + self.document["location"], method, headers=headers, body=body)


def poll(role: RunningRole) -> TakenJob | None:
    """Ask for a job until there is one, or none in time; after a 503, ask again as workers do."""
    body = json.dumps(REQUEST).encode()
    headers = {"Content-Type": "application/json"}
    while (answer := fetch(f"{role.url}{API}/jobs", "POST", headers=headers, body=body)).status == 503:
        time.sleep(float(answer.headers["Retry-After"]))
    assert answer.status in {201, 204}, answer.body
    return TakenJob(role, json.loads(answer.body)) if answer.status == 201 else None


def take(role: RunningRole) -> TakenJob:
    """Take the next job."""
    for _ in range(10):
        job = poll(role)
        if job is not None:
            return job
    raise AssertionError(role.log)


def abort_poll(role: RunningRole, seconds: float) -> TakenJob | None:
    """Ask for a job, and close the connection after some time, unless the answer is there."""
    address = urlsplit(role.url)
    body = json.dumps(REQUEST)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            f"POST {API}/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        connection.settimeout(seconds)
        try:
            answer = connection.recv(1 << 16)
        except TimeoutError:
            return None
    head, _, content = answer.partition(b"\r\n\r\n")
    return TakenJob(role, json.loads(content)) if head.startswith(b"HTTP/1.1 201 ") else None
