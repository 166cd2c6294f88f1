"""The worker API on a free port, with an engine in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from twisted.internet.defer import maybeDeferred

from image_service.core.errors import Unauthorized
from image_service.jobs.api.front import ApiFront
from image_service.jobs.principal import Principal
from image_service.jobs.worker_api.worker_api import WorkerApi
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.messages import ApiRequest
from image_service.server.web_api.resource import ApiSite
from tests.jobs.fixtures import upstream_document
from tests.jobs.worker_api.conformance import ConformanceClient
from tests.pytwisted import async_fixture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.jobs.artifacts.contents import Contents
    from tests.jobs.dispatch.dispatching import Dispatching, OpenDispatching

BASE = "/api/image-builder-worker/v1/"
PRINCIPALS = {
    "one": Principal("org-1"),
    "two": Principal("org-2"),
    "operator": Principal("org-0", is_operator=True),
    "built_in": Principal(is_operator=True, is_built_in=True),
}


class NamedPrincipals:
    """Takes the name of a principal for a token."""

    async def authenticate(self, authorization: str | None, *, is_local: bool) -> Principal:
        del is_local
        name = (authorization or "").removeprefix("Bearer ")
        if name not in PRINCIPALS:
            raise Unauthorized("no such principal")
        return PRINCIPALS[name]


@attrs.frozen
class Serving:
    """A running worker API, and clients of it."""

    dispatching: Dispatching
    one: ConformanceClient
    two: ConformanceClient
    operator: ConformanceClient
    built_in: ConformanceClient


@async_fixture
async def serving(reactor: EPollReactor, open_dispatching: OpenDispatching) -> AsyncIterator[Serving]:
    dispatching = open_dispatching()
    contents = cast("Contents", dispatching.contents)
    api = WorkerApi(dispatching.rows, dispatching.dispatcher, dispatching.attempts, contents)
    front = ApiFront(NamedPrincipals(), [api])
    port = reactor.listenTCP(
        0, ApiSite(front.resource(RequestGuard()), reactor, 1_000_000), interface="127.0.0.1"
    )
    ours = json.loads((await api.respond(ApiRequest("GET", f"{BASE}openapi"))).body)
    documents = tuple(filter(None, (ours, upstream_document("worker-v1.yml"))))
    clients = [
        ConformanceClient(
            reactor,
            f"http://127.0.0.1:{port.getHost().port}",
            BASE,
            documents,
            name,
        )
        for name in PRINCIPALS
    ]
    yield Serving(dispatching, *clients)
    await maybeDeferred(port.stopListening)


@pytest.fixture
def dispatching(serving: Serving) -> Dispatching:
    return serving.dispatching
