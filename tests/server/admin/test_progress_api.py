"""Mounts, failures and events over activity that the test records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from jsonschema import Draft202012Validator
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.core.errors import InvalidRequest, NotFound, Unavailable
from image_service.server.admin.activity import COLLECT_SECONDS, Activity, ProcessActivity
from image_service.server.admin.events import KEEP_ALIVE_SECONDS, MAX_STREAMS
from image_service.server.admin.progress_api import MAX_EVENTS, ProgressApi
from image_service.server.http.head import Request
from image_service.server.http.problem import problem
from image_service.server.transport.exchanges.access_log import COMPLETE
from image_service.server.transport.exchanges.exchange import Exchange, PreparedResponse
from image_service.server.transport.exchanges.failures import MAX_FAILURES
from image_service.server.transport.sending.observer import HandshakeFailure
from image_service.server.web_api.messages import ApiRequest
from tests.pytwisted import ensure_deferred
from tests.server.boot_progress.boots import MIB, iso, key

if TYPE_CHECKING:
    from image_service.server.admin.state import ServiceState
    from image_service.server.web_api.messages import ApiResponse, ContentStream

IMAGE = {"version": "9.6", "openshift_version": "4.20", "cpu_architecture": "x86_64", "type": "full-iso"}


@attrs.define
class FakeImages:
    """The states of base images."""

    images: list[dict[str, object]] = attrs.field(factory=list)
    is_reachable: bool = True

    async def render_images(self) -> str:
        if not self.is_reachable:
            raise Unavailable("no serving process responds")
        return json.dumps({"images": self.images})


@attrs.define(eq=False)
class Site:
    """One process, and the API."""

    clock: Clock = attrs.field(factory=Clock)
    state: FakeImages = attrs.field(factory=FakeImages)
    totals: tuple[int, int] = (0, 0)
    process: ProcessActivity = attrs.field(init=False)
    activity: Activity = attrs.field(init=False)
    api: ProgressApi = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.process = ProcessActivity(self.clock.seconds, lambda: None, lambda: self.totals)
        self.activity = Activity(60, self.clock.seconds, self.process.collect_own)
        self.api = ProgressApi(self.activity, cast("ServiceState", self.state), self.clock)

    def read(self, address: str = "192.0.2.1") -> None:
        """Read an image."""
        self.process.reads.find(key(address=address), iso()).record(0, MIB)

    def refuse(self, reason: str) -> None:
        """Refuse a request."""
        request = Request("GET", "/x", {"user-agent": "iDRAC/9"}, keep_alive=True)
        prepared = PreparedResponse(problem(NotFound(reason), {}))
        exchange = Exchange("GET", request, 0.0, prepared=prepared, request_id="4f2a")
        self.process.failures.record_exchange(exchange, "192.0.2.1", COMPLETE)

    async def get(self, name: str) -> ApiResponse:
        """Call the operation of a path below ``/api/v1/``."""
        operations = {each.path: each for each in self.api.operations}
        path = f"/api/v1/{name}"
        return await operations[path].handler(ApiRequest("GET", path))

    async def document(self, name: str) -> Any:
        """Return the JSON of an operation, which must be as its schema says."""
        (operation,) = [each for each in self.api.operations if each.path == f"/api/v1/{name}"]
        document = json.loads((await self.get(name)).body)
        components = {"schemas": self.api.schemas}
        schema = {"$ref": f"#/components/schemas/{operation.reply}", "components": components}
        Draft202012Validator(schema).validate(document)
        return document

    async def open(self) -> ContentStream:
        """Open a stream of events."""
        stream = (await self.get("events")).stream
        assert stream is not None
        return stream


@pytest.fixture
def site() -> Site:
    return Site()


def events_of(content: bytes) -> list[dict[str, Any]]:
    """Return the events of a piece of a stream, each of which has one line."""
    lines = content.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@ensure_deferred
async def test_mounts_are_those_of_now(site: Site) -> None:
    assert await site.document("mounts") == {"mounts": []}
    site.read()
    (mount,) = (await site.document("mounts"))["mounts"]
    assert (mount["address"], mount["bytes_read"]) == ("192.0.2.1", MIB)


@ensure_deferred
async def test_activity_is_what_was_done_since_the_last_collection(site: Site) -> None:
    site.clock.advance(600)
    site.totals = 5, 1000
    site.read()
    await site.activity.check()
    site.clock.advance(60)
    site.totals = 7, 1500
    site.process.record_link_use("4f2a")
    document = await site.document("activity")
    assert len(document["minutes"]) == 60
    assert document["minutes"][-2:] == [
        {"requests": 5, "bytes_sent": 1000, "machines": 1},
        {"requests": 2, "bytes_sent": 500, "machines": 0},
    ]
    (first,) = document["link_uses"]
    assert first["id"] == "4f2a"
    site.clock.advance(60)
    site.process.record_link_use("4f2a")
    (second,) = (await site.document("activity"))["link_uses"]
    assert second["id"] == "4f2a"


@ensure_deferred
async def test_page_of_mounts_has_those_after_the_latest(site: Site) -> None:
    for number in range(5):
        site.read(f"192.0.2.{number}")
        await site.document("mounts")
    operation = next(each for each in site.api.operations if each.path == "/api/v1/mounts")

    async def addresses(**query: str) -> list[str]:
        response = await operation.handler(ApiRequest("GET", operation.path, query=query))
        return [mount["address"] for mount in json.loads(response.body)["mounts"]]

    assert await addresses(limit="2") == ["192.0.2.4", "192.0.2.3"]
    assert await addresses(limit="2", offset="3") == ["192.0.2.1", "192.0.2.0"]
    assert await addresses(offset="4") == ["192.0.2.0"]
    assert await addresses(limit="0") == []
    with pytest.raises(InvalidRequest, match="limit must be a whole number"):
        await addresses(limit="-1")


@ensure_deferred
async def test_latest_failures_come_first_and_their_number_is_limited(site: Site) -> None:
    for number in range(MAX_FAILURES + 1):
        site.refuse(f"failure {number}")
    site.process.failures.record_handshake("192.0.2.2", HandshakeFailure.CLOSED, "TLS handshake: closed")
    document = await site.document("failures")
    failures = document["failures"]
    assert len(failures) == MAX_FAILURES
    first, second, *_ = failures
    assert (first["client"], first["path"], first["status"]) == ("192.0.2.2", None, None)
    assert (second["reason"], second["status"]) == (f"failure {MAX_FAILURES}", 404)
    assert (second["cause"], second["request_id"], second["user_agent"]) == ("not-found", "4f2a", "iDRAC/9")
    assert [(each["cause"], each["count"]) for each in document["causes"]] == [
        ("not-found", MAX_FAILURES + 1),
        ("tls-closed", 1),
    ]
    assert all(each["what_to_do"] for each in document["causes"])


@ensure_deferred
async def test_stream_begins_with_the_present_state_and_goes_on_with_changes(site: Site) -> None:
    site.state.images = [{**IMAGE, "state": "downloading"}]
    site.read()
    site.refuse("refused")
    stream = await site.open()
    assert [event["type"] for event in events_of(await stream.read())] == ["image", "mount", "failure"]
    waiting = Deferred.fromCoroutine(stream.read())
    site.clock.advance(COLLECT_SECONDS)
    assert not waiting.called
    site.state.images = [{**IMAGE, "state": "ready"}]
    site.clock.advance(COLLECT_SECONDS)
    (event,) = events_of(await waiting)
    assert event == {"type": "image", "image": {**IMAGE, "state": "ready"}}


@ensure_deferred
async def test_slow_reader_of_events_gets_the_latest_state_only(site: Site) -> None:
    stream = await site.open()
    for _ in range(3):
        site.read()
        await site.activity.refresh()
    assert len(events_of(await stream.read())) == 1


@ensure_deferred
async def test_many_changes_come_in_pieces(site: Site) -> None:
    for number in range(MAX_EVENTS + 10):
        site.read(f"client {number}")
    stream = await site.open()
    pieces = [events_of(await stream.read()) for _ in range(2)]
    assert [len(piece) for piece in pieces] == [MAX_EVENTS, 10]
    addresses = {event["mount"]["address"] for piece in pieces for event in piece}
    assert len(addresses) == MAX_EVENTS + 10


@ensure_deferred
async def test_quiet_stream_is_kept_alive_even_without_workers(site: Site) -> None:
    site.state.is_reachable = False
    waiting = Deferred.fromCoroutine((await site.open()).read())
    for _ in range(int(KEEP_ALIVE_SECONDS / COLLECT_SECONDS) + 1):
        site.clock.advance(COLLECT_SECONDS)
    assert await waiting == b":\n\n"


@ensure_deferred
async def test_number_of_streams_is_limited(site: Site) -> None:
    streams = [await site.open() for _ in range(MAX_STREAMS)]
    with pytest.raises(Unavailable):
        await site.open()
    streams[0].close()
    await site.open()
