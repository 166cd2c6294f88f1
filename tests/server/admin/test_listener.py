"""The administrative listener, over a state that the test sets, and the client of commands."""

from __future__ import annotations

import json
import socket
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from openapi_spec_validator import validate
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from image_service.common.concurrency.process_parts import PartsStack
from image_service.common.concurrency.rate_limiter import BURST
from image_service.core.errors import ConfigurationError, NotFound, Unavailable
from image_service.server.admin import client as client_module
from image_service.server.admin.client import AdminClient
from image_service.server.admin.listener import MAX_BODY_BYTES, start_admin
from image_service.server.admin.status_page import page_files
from image_service.settings.admin import AdminSettings
from image_service.settings.parsers import Address, ListenAddress
from image_service.settings.settings import Settings
from tests.ports import free_port
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.admin.state import Page

TOKEN = "token-of-the-administrator"


@attrs.define
class FakeState:
    """The state of no service."""

    reason: str = ""
    impairment: str = ""

    async def unready_reason(self) -> str:
        return self.reason

    async def describe_impairment(self) -> str:
        return self.impairment

    async def render_metrics(self) -> Page:
        return b"up 1\n", "text/plain; version=0.0.4"

    async def render_images(self) -> str:
        if self.reason:
            raise Unavailable(self.reason, retry_after_seconds=1)
        return '{"images": []}\n'


@attrs.frozen
class Admin:
    """A listener that has started."""

    state: FakeState
    listen: ListenAddress
    request: ApiClient

    async def get(self, path: str, token_file: Path | None = None) -> bytes:
        """Request a path by the client of commands."""
        client = AdminClient(self.request.url, token_file)
        content: bytes = await deferToThread(client.get, path)
        return content


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    return file


async def start(reactor: EPollReactor, token_file: Path | None) -> tuple[PartsStack, Admin]:
    listen, state, parts = ListenAddress("127.0.0.1", free_port()), FakeState(), PartsStack(reactor)
    settings = Settings(admin=AdminSettings(listen=(listen,), token_file=token_file))
    start_admin(parts, settings, state, files=page_files())
    return parts, Admin(state, listen, ApiClient(reactor, f"http://127.0.0.1:{listen.port}"))


@async_fixture
async def admin(reactor: EPollReactor) -> AsyncIterator[Admin]:
    parts, started = await start(reactor, None)
    yield started
    await parts.aclose()


@async_fixture
async def guarded(reactor: EPollReactor, token_file: Path) -> AsyncIterator[Admin]:
    parts, started = await start(reactor, token_file)
    yield started
    await parts.aclose()


@ensure_deferred
async def test_pages_are_those_of_the_state(admin: Admin) -> None:
    assert await admin.get("/metrics") == b"up 1\n"
    assert json.loads(await admin.get("/images")) == {"images": []}
    metrics = await admin.request("GET", "/metrics")
    assert metrics.field("Content-Type") == "text/plain; version=0.0.4"
    assert metrics.field("Cache-Control") == "no-store"
    assert parsedate_to_datetime(metrics.field("Date") or "").tzinfo is UTC
    assert metrics.field("Server") is None


@ensure_deferred
async def test_openapi_document_is_valid_and_names_the_paths(admin: Admin) -> None:
    document = json.loads(await admin.get("/openapi.json"))
    validate(document)
    paths = {"/health", "/live", "/metrics", "/images", "/openapi.json", "/api/v1/session"}
    assert paths == set(document["paths"])
    assert list(document["paths"]["/api/v1/session"]) == ["get"]


@ensure_deferred
async def test_unready_service_is_alive_and_says_why(admin: Admin) -> None:
    assert (await admin.request("GET", "/health")).status == 200
    admin.state.reason = "base images are not ready yet"
    for path in ("/health", "/images"):
        reply = await admin.request("GET", path)
        assert (reply.status, reply.document["detail"]) == (503, admin.state.reason)
        assert reply.field("Retry-After") == "1"
    assert (await admin.request("GET", "/live")).status == 200


@ensure_deferred
async def test_large_content_is_413_before_the_token_is_known(guarded: Admin) -> None:
    fields = {"Content_Type": "application/json"}
    body = b" " * (MAX_BODY_BYTES + 1)
    assert (await guarded.request("POST", "/health", body=body, **fields)).status == 413
    assert (await guarded.request("POST", "/health", body=body[1:], **fields)).status == 405


@ensure_deferred
async def test_probes_need_no_token_and_other_paths_do(guarded: Admin, token_file: Path) -> None:
    assert [(await guarded.request("GET", path)).status for path in ("/health", "/live")] == [200, 200]
    assert [(await guarded.request("GET", path)).status for path in ("/metrics", "/nowhere")] == [401, 401]
    assert await guarded.get("/metrics", token_file) == b"up 1\n"


@ensure_deferred
async def test_page_needs_no_token_and_begins_a_session_with_it(guarded: Admin) -> None:
    for path in ("/", "/static/page.js"):
        assert (await guarded.request("GET", path)).status == 200
    assert (await guarded.request("GET", "/static/nothing.js")).status == 401
    session = "/api/v1/session"
    assert (await guarded.request("POST", session, Authorization="Bearer wrong")).status == 401
    begun = await guarded.request("POST", session, Authorization=f"Bearer {TOKEN}")
    cookie = (begun.field("Set-Cookie") or "").partition(";")[0]
    assert begun.status == 204
    assert TOKEN not in cookie
    assert (await guarded.request("GET", session, Cookie=cookie)).document["expires_in"] > 0
    assert (await guarded.request("GET", "/metrics", Cookie=cookie)).status == 200
    assert (await guarded.request("POST", session, Cookie=cookie)).status == 401  # none without an end
    by_token = await guarded.request("GET", session, Authorization=f"Bearer {TOKEN}")
    assert by_token.document == {"expires_in": None}
    assert (await guarded.request("DELETE", session, Cookie=cookie)).status == 204
    assert (await guarded.request("GET", "/metrics", Cookie=cookie)).status == 401


@ensure_deferred
async def test_session_is_not_asked_for_without_a_token(admin: Admin) -> None:
    assert (await admin.request("GET", "/api/v1/session")).document == {"expires_in": None}
    assert (await admin.request("POST", "/api/v1/session")).status == 405


@ensure_deferred
async def test_client_says_what_is_wrong_with_the_token(guarded: Admin, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the service requires a token; --token-file names its file"):
        await guarded.get("/images")
    other = tmp_path / "other"
    other.write_text("token-of-somebody-else")
    with pytest.raises(Unavailable, match=f"the service does not accept the token in {other}"):
        await guarded.get("/images", other)
    other.write_text("two words")
    with pytest.raises(ConfigurationError, match=f"--token-file {other}: must be a file of one token"):
        await guarded.get("/images", other)


@ensure_deferred
async def test_wrong_tokens_are_logged_seldom_and_not_repeated(guarded: Admin) -> None:
    with capturedLogs() as events:
        await guarded.request("GET", "/images")  # without any, as a browser asks first
        for number in range(3 * BURST):
            await guarded.request("GET", "/images", Authorization=f"Bearer guess-{number}")
    lines = [formatEvent(event) for event in events if event["log_namespace"].startswith("image_service")]
    assert lines == ["refused a request from 127.0.0.1: its credentials are wrong"] * BURST


@ensure_deferred
async def test_client_repeats_the_detail_of_a_problem(admin: Admin) -> None:
    with pytest.raises(NotFound, match=r"/nowhere: status 404: no such resource"):
        await admin.get("/nowhere")


@ensure_deferred
async def test_taken_port_names_the_variable(reactor: EPollReactor, admin: Admin) -> None:
    settings = Settings(admin=AdminSettings(listen=(admin.listen,)))
    with pytest.raises(ConfigurationError, match=rf"^ADMIN_LISTEN=127\.0\.0\.1:{admin.listen.port}: "):
        start_admin(PartsStack(reactor), settings, admin.state)


@ensure_deferred
async def test_all_addresses_have_the_same_pages_and_token(reactor: EPollReactor, token_file: Path) -> None:
    addresses = tuple(ListenAddress(host, free_port()) for host in ("127.0.0.1", "127.0.0.2", "::1"))
    parts = PartsStack(reactor)
    settings = Settings(admin=AdminSettings(listen=addresses, token_file=token_file))
    start_admin(parts, settings, FakeState())
    for address in addresses:
        url = f"http://{Address(address.host, address.port).netloc}"
        assert await deferToThread(AdminClient(url, token_file).get, "/metrics") == b"up 1\n"
        with pytest.raises(Unavailable, match="requires a token"):
            await deferToThread(AdminClient(url).get, "/metrics")
    await parts.aclose()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port)).close()


@ensure_deferred
async def test_second_address_that_is_taken_is_named(reactor: EPollReactor, admin: Admin) -> None:
    listen = (ListenAddress("127.0.0.2", free_port()), admin.listen)
    settings, parts = Settings(admin=AdminSettings(listen=listen)), PartsStack(reactor)
    with pytest.raises(ConfigurationError, match=rf"^ADMIN_LISTEN=127\.0\.0\.1:{admin.listen.port}: "):
        start_admin(parts, settings, admin.state)
    await parts.aclose()


@ensure_deferred
async def test_without_an_address_nothing_listens(reactor: EPollReactor) -> None:
    parts = PartsStack(reactor)
    before = reactor.getReaders()
    start_admin(parts, Settings(), FakeState())
    assert reactor.getReaders() == before


def test_client_explains_a_port_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = AdminClient(f"https://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Unavailable, match=r"no response in 0\.1 s; the port may not speak HTTPS$"):
            client.get("/images")


class Redirector(BaseHTTPRequestHandler):
    """Redirects every request to itself."""

    received: list[str | None]

    def do_GET(self) -> None:
        self.received.append(self.headers["Authorization"])
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Log nothing."""


def test_client_follows_no_redirect_with_the_token(token_file: Path) -> None:
    Redirector.received = []
    with HTTPServer(("127.0.0.1", 0), Redirector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(Unavailable, match=r"status 302$"):
                AdminClient(f"http://127.0.0.1:{server.server_port}", token_file).get("/images")
        finally:
            server.shutdown()
            thread.join()
    assert Redirector.received == [f"Bearer {TOKEN}"]
