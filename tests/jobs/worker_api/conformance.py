"""A client of the worker API, written from the description of osbuild-worker, not from our server.

It takes locations for opaque, parses ids as UUIDs, accepts 201 and 204 from POST /jobs and exactly 200 from
GET and PATCH, and checks every reply and every error object.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin
from uuid import UUID

import attrs
from jsonschema import Draft202012Validator
from treq.client import HTTPClient
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.epollreactor import EPollReactor

    from image_service.jobs.model import Json

ERROR_MEMBERS = {"id", "kind", "href", "code", "operation_id", "reason", "message", "details"}


class WorkerApiError(Exception):
    """The server has refused a request by a correct error object."""

    def __init__(self, status: int, number: int, details: str) -> None:
        super().__init__(f"{status}, error {number}: {details}")
        self.status = status
        self.number = number


@attrs.frozen
class RunningJob:
    """A job that a worker has."""

    id: UUID
    type: str
    location: str
    artifact_location: str
    arguments: Mapping[str, Any]
    document: Json

    def __str__(self) -> str:
        return self.location.rpartition("/")[2]


@attrs.frozen
class ConformanceClient:
    """A worker.

    Args:
        url: of the server.
        base: path of the API, with a slash at its end.
        documents: of the API; replies are checked by the schemas of each.
        token: in the place of a JWT.
    """

    reactor: EPollReactor
    url: str
    base: str
    documents: tuple[Json, ...]
    token: str = ""

    async def request(
        self, method: str, location: str, body: bytes | None = None, content_type: str | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the content of a reply below 400; raises WorkerApiError otherwise."""
        fields = {"Authorization": self.token} if self.token else {}
        if content_type is not None:
            fields["Content-Type"] = content_type
        agent = Agent(self.reactor, pool=HTTPConnectionPool(self.reactor, persistent=False))
        response = await HTTPClient(agent).request(
            method,
            urljoin(self.url + self.base, location),
            headers=Headers({name: [value] for name, value in fields.items()}),
            data=body,
            reactor=self.reactor,  # type: ignore[arg-type]
        )
        content = await response.content()
        if response.code < 400:
            return response.code, content
        raise self._read_error(response.code, json.loads(content))

    async def call(self, method: str, location: str, document: object = None) -> tuple[int, Any]:
        """Send JSON, and return the status and the JSON of the reply."""
        body = None if document is None else json.dumps(document).encode()
        status, content = await self.request(method, location, body, "application/json" if body else None)
        return status, json.loads(content) if content else None

    async def register(self, architecture: str = "x86_64") -> str:
        status, reply = await self.call("POST", "workers", {"arch": architecture})
        assert status == 201
        self._check("PostWorkersResponse", reply)
        return str(UUID(reply["worker_id"]))

    async def post_status(self, worker_id: str) -> None:
        """Post it as osbuild-worker does: with a type of content, and without content."""
        status, _ = await self.request("POST", f"workers/{worker_id}/status", b"", "application/json")
        assert status == 200

    async def poll(self, *types: str, architecture: str = "x86_64", **members: str) -> RunningJob | None:
        status, reply = await self.call(
            "POST", "jobs", {"types": types or ("customize",), "arch": architecture, **members}
        )
        if status == 204:
            assert reply is None
            return None
        assert status == 201
        self._check("RequestJobResponse", reply)
        assert reply["kind"] == "RequestJob"
        assert str(UUID(reply["compose_id"])) == reply["compose_id"]
        return RunningJob(
            UUID(reply["id"]),
            reply["type"],
            reply["location"],
            reply["artifact_location"],
            reply["args"],
            reply,
        )

    async def is_cancelled(self, job: RunningJob) -> bool:
        status, reply = await self.call("GET", job.location)
        assert status == 200
        self._check("GetJobResponse", reply)
        assert reply["kind"] == "JobStatus"
        return bool(reply["canceled"])

    async def update(self, job: RunningJob, document: Json) -> None:
        status, reply = await self.call("PATCH", job.location, document)
        assert status == 200
        self._check("UpdateJobResponse", reply)
        assert reply["kind"] == "UpdateJobResponse"

    async def upload(self, job: RunningJob, name: str, content: bytes) -> Json:
        """Send a file; return its entry for a result."""
        location = urljoin(self.url + job.artifact_location, name)
        status, _ = await self.request("PUT", location, content, "application/octet-stream")
        assert status == 200
        return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    async def read_input(self, job: RunningJob, name: str) -> bytes:
        status, content = await self.request("GET", f"{job.location}/inputs/{name}")
        assert status == 200
        return content

    def _check(self, schema: str, reply: object) -> None:
        for document in self.documents:
            components = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
            Draft202012Validator(components).validate(reply)

    def _read_error(self, status: int, error: Any) -> WorkerApiError:
        self._check("Error", error)
        assert set(error) == ERROR_MEMBERS
        assert error["kind"] == "Error"
        assert error["code"] == f"IMAGE-BUILDER-WORKER-{error['id']}"
        assert error["message"] == error["reason"]
        assert isinstance(error["details"], str)
        assert isinstance(error["operation_id"], str)
        return WorkerApiError(status, int(error["id"]), error["details"])
