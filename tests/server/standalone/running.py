"""The stand-in and a client of its API, running during a test."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
from treq.client import HTTPClient
from twisted.internet.task import deferLater
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

from image_service.settings.parsers import ListenAddress
from tests.server.standalone.faults import FaultyStandalone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

BASE_URL = "http://images.test:8080"
INFRA_ENVS = "/api/assisted-install/v2/infra-envs"
LOOPBACK = ListenAddress("127.0.0.1", 0)
_POLL_SECONDS = 0.05


@attrs.frozen
class Reply:
    status: int
    headers: Headers
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    def field(self, name: str) -> str | None:
        values = self.headers.getRawHeaders(name)
        return values[0] if values else None


@attrs.frozen
class ApiClient:
    """Sends requests to the API, each on a new connection."""

    reactor: EPollReactor
    url: str

    async def __call__(
        self, method: str, path: str, document: object = None, body: bytes | None = None, **fields: str
    ) -> Reply:
        headers = Headers({name.replace("_", "-"): [value] for name, value in fields.items()})
        if document is not None:
            body = json.dumps(document).encode()
            headers.setRawHeaders("Content-Type", ["application/json"])
        agent = Agent(self.reactor, pool=HTTPConnectionPool(self.reactor, persistent=False))
        response = await HTTPClient(agent).request(
            method,
            self.url + path,
            headers=headers,
            data=body,
            reactor=self.reactor,  # type: ignore[arg-type]
        )
        return Reply(response.code, response.headers, await response.content())

    async def get_image(self, path: str) -> Reply:
        """Request an image; again while it is refused for the moment, as on a busy machine."""
        while (reply := await self("GET", path)).status in {503, 504}:
            await deferLater(self.reactor, _POLL_SECONDS)
        return reply

    async def register(self, **fields: object) -> str:
        document = {"name": "a", "openshift_version": "4.20", **fields}
        reply = await self("POST", INFRA_ENVS, document)
        assert reply.status == 201, reply
        return str(reply.document["id"])


@asynccontextmanager
async def running(
    reactor: EPollReactor, data_dir: Path, listen: ListenAddress = LOOPBACK, token: str | None = None
) -> AsyncIterator[FaultyStandalone]:
    standalone = FaultyStandalone(reactor, data_dir, listen, token, lambda: BASE_URL)
    await standalone.start()
    try:
        yield standalone
    finally:
        await standalone.stop()
