"""What is posted to the webhook, and when."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock, deferLater
from twisted.logger import capturedLogs, formatEvent

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.process_parts import PartsStack
from image_service.common.http.origins import parse_origin
from image_service.core.errors import Unavailable
from image_service.server.admin.webhook import MAX_EVENTS, Webhook, render_events, start_webhook
from image_service.server.boot_progress.clients import DOCTOR
from image_service.settings.admin import WebhookSettings
from image_service.settings.proxies import NO_PROXIES
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.epollreactor import EPollReactor

MOUNT = {
    "state": "stalled",
    "infra_env": "5a3b1e00-0000-4000-8000-000000000001",
    "infra_env_name": "rack 1",
    "kind": "full-iso",
    "address": "192.0.2.7",
    "client": "iDRAC",
    "stage": "kernel",
}
SECRET = "s3cret-of-the-url"


@attrs.define
class Receiver:
    """A receiver that answers when the test says so."""

    clock: Clock = attrs.field(factory=Clock)
    answer: Deferred[None] | None = None
    documents: list[dict[str, Any]] = attrs.field(factory=list)
    webhook: Webhook = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        backoff = Backoff(5, 300, jitter=lambda _, upper: upper)
        self.webhook = Webhook("https://chat.test", self._post, self.clock.seconds, backoff)

    def _post(self, body: bytes) -> Deferred[None]:
        self.documents.append(json.loads(body))
        return succeed(None) if self.answer is None else self.answer

    @property
    def addresses(self) -> list[str]:
        """Those in the latest document."""
        return [each["mount"]["address"] for each in self.documents[-1]["events"]]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@ensure_deferred
async def test_machine_that_is_quiet_stalled_or_done_is_posted_once(receiver: Receiver) -> None:
    for state in ("reading", "quiet", "stalled", "done", "aborted"):
        receiver.webhook.add({**MOUNT, "state": state})
    receiver.webhook.add({**MOUNT, "client": DOCTOR})
    await receiver.webhook.deliver()
    await receiver.webhook.deliver()
    (document,) = receiver.documents
    assert [each["event"] for each in document["events"]] == ["quiet", "stalled", "done"]
    assert document["text"].splitlines()[1] == "192.0.2.7 (iDRAC), rack 1 (full-iso): stalled at kernel"


@ensure_deferred
async def test_failed_post_is_repeated_later_and_told_once(receiver: Receiver) -> None:
    with capturedLogs() as logged:
        receiver.webhook.add(MOUNT)
        for _ in range(2):
            receiver.answer = fail(Unavailable("status 500"))
            await receiver.webhook.deliver()
            await receiver.webhook.deliver()  # it is too early
            receiver.clock.advance(10)
    told = "cannot post notifications to https://chat.test: status 500"
    assert [formatEvent(event) for event in logged] == [told]
    assert len(receiver.documents) == 2
    receiver.answer = None
    receiver.webhook.add({**MOUNT, "address": "192.0.2.8"})
    await receiver.webhook.deliver()
    assert receiver.addresses == ["192.0.2.7", "192.0.2.8"]


@ensure_deferred
async def test_oldest_events_are_dropped_while_the_receiver_is_away(receiver: Receiver) -> None:
    receiver.answer = Deferred()
    receiver.webhook.add({**MOUNT, "address": "first"})
    delivering = Deferred.fromCoroutine(receiver.webhook.deliver())
    for number in range(MAX_EVENTS):
        receiver.webhook.add({**MOUNT, "address": str(number)})
    receiver.answer.errback(Unavailable("away"))
    await delivering
    receiver.answer = None
    receiver.clock.advance(300)
    await receiver.webhook.deliver()
    assert receiver.addresses == [str(number) for number in range(MAX_EVENTS)]


def test_text_names_no_group_and_has_one_line_for_each_event() -> None:
    hostile = {**MOUNT, "infra_env_name": "<!channel>\n&\x1b[2J"}
    artifact = {**MOUNT, "infra_env_name": None, "infra_env": None, "stage": None, "client": None}
    events = [{"event": "done", "mount": mount} for mount in (hostile, artifact)]
    first, second = json.loads(render_events(events))["text"].splitlines()
    assert "&lt;!channel&gt; &amp; [2J (full-iso)" in first
    assert second == "192.0.2.7 (unknown client), boot artifacts (full-iso): done"


@contextmanager
def receiving(respond: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    """Run a real receiver; yield its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            respond(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def post(reactor: EPollReactor, status: int, *, is_allowed: bool) -> tuple[str, str, list[bytes]]:
    """Post an event to a receiver; return its origin, what was logged, and the bodies that it got."""
    bodies: list[bytes] = []

    def respond(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        bodies.append(body)
        handler.send_response(status)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with receiving(respond) as origin, capturedLogs() as logged:
        allowed = (parse_origin(origin),) if is_allowed else ()
        settings = WebhookSettings(url=f"{origin}/{SECRET}?token={SECRET}", allowed_origins=allowed)
        async with PartsStack(reactor) as parts:
            webhook = start_webhook(parts, settings, NO_PROXIES)
            assert webhook is not None
            webhook.add(MOUNT)
            await webhook.deliver()
    warnings = [str(formatEvent(each)) for each in logged if each["log_level"].name == "warn"]
    return origin, "".join(warnings), bodies


@ensure_deferred
async def test_receiver_at_an_inner_address_needs_permission(reactor: EPollReactor) -> None:
    origin, log, bodies = await post(reactor, 204, is_allowed=False)
    assert f"127.0.0.1, which is not public, and WEBHOOK_ALLOW_HOST does not list {origin}" in log
    assert SECRET not in log
    assert bodies == []
    _, log, (body,) = await post(reactor, 204, is_allowed=True)
    assert log == ""
    assert json.loads(body)["events"] == [{"event": "stalled", "mount": MOUNT}]


@pytest.mark.parametrize("status", [302, 404, 500])
@ensure_deferred
async def test_other_status_is_told_and_no_redirect_is_followed(reactor: EPollReactor, status: int) -> None:
    origin, log, bodies = await post(reactor, status, is_allowed=True)
    assert log == f"cannot post notifications to {origin}: status {status}"
    assert len(bodies) == 1


@ensure_deferred
async def test_receiver_that_hangs_does_not_hold_up_the_end(reactor: EPollReactor) -> None:
    arrived, released = threading.Event(), threading.Event()

    def respond(_: BaseHTTPRequestHandler, body: bytes) -> None:
        assert body
        arrived.set()
        released.wait(100)

    with receiving(respond) as origin:
        async with PartsStack(reactor) as parts:
            settings = WebhookSettings(url=origin, allowed_origins=(parse_origin(origin),))
            webhook = start_webhook(parts, settings, NO_PROXIES)
            assert webhook is not None
            webhook.add(MOUNT)
            delivering = Deferred.fromCoroutine(webhook.deliver())
            while not arrived.is_set():
                await deferLater(reactor, 0.01)
        await delivering
        released.set()
