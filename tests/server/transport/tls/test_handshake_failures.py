"""TLS handshakes that fail: the count, the log and the response."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, cast

import pytest
from OpenSSL import SSL
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from image_service.server.transport.deadline import LINGER_SECONDS
from image_service.server.transport.exchanges import handshake_failures
from image_service.server.transport.exchanges.failures import RecentFailures
from image_service.server.transport.exchanges.handshake_failures import (
    SUMMARY_SECONDS,
    HandshakeFailures,
    find_failure,
)
from image_service.server.transport.sending.observer import HandshakeFailure
from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.null_observer import NULL_OBSERVER
from tests.server.transport.reactor_turns import turns, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.logger import LogEvent

    from tests.server.transport.conftest import Serve
    from tests.server.transport.server import Server

RECORD = b"\x16\x03\x01\x01\x00"  # the begin of a handshake record of 256 bytes
UNDECIPHERABLE = b"\x17\x03\x03\x00\x20" + bytes(32)  # a record of application data
LEGACY = "ALL:@SECLEVEL=0"


# Counted: failures of real clients.


@pytest.fixture
def events() -> Iterator[list[LogEvent]]:
    with capturedLogs() as captured:
        yield cast("list[LogEvent]", captured)


def lines(events: list[LogEvent]) -> list[str]:
    """Return the texts of the warnings so far, and forget them."""
    assert {event["log_level"].name for event in events} <= {"warn", "info"}
    texts = [str(formatEvent(event)) for event in events if event["log_level"].name == "warn"]
    events.clear()
    return texts


def untrusting() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def untrusting_1_2() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_1_1() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(LEGACY)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


def unsupported_ciphers() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA:@SECLEVEL=0")
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
@pytest.mark.parametrize(
    ("make_context", "reason", "logged"),
    [
        (untrusting, "not-trusted", "the client does not trust the certificate"),
        (untrusting_1_2, "not-trusted", "the client does not trust the certificate"),
        (tls_1_1, "protocol-version", "the client supports neither TLS 1.2 nor TLS 1.3"),
        (unsupported_ciphers, "no-shared-cipher", "no cipher suite, group or signature algorithm in common"),
    ],
)
@ensure_deferred
async def test_failure_is_counted_by_reason_and_explained(
    tls: Server, events: list[LogEvent], make_context: type[ssl.SSLContext], reason: str, logged: str
) -> None:
    client = tls.connect()
    with pytest.raises(ssl.SSLError):
        await tls.secure(client, make_context())
    client.close()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == [reason]
    (line,) = lines(events)
    assert line.startswith("a TLS handshake of 127.0.0.1 failed: ")
    assert logged in line


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"hello", "not-tls"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not-tls"),
        (bytes(100), "not-tls"),
        (b"\x16", "closed"),
        (RECORD, "closed"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff", "protocol-error"),
    ],
)
@ensure_deferred
async def test_bytes_that_are_no_client_hello_are_counted(tls: Server, sent: bytes, reason: str) -> None:
    client = tls.connect()
    await client.send(sent)
    await turns(tls.reactor)
    client.close()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == [reason]


@ensure_deferred
async def test_reset_within_the_handshake_is_counted(tls: Server) -> None:
    client = tls.connect()
    await client.send(RECORD)
    await turns(tls.reactor)
    client.reset()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == ["closed"]


@pytest.mark.parametrize("sent", [b"", RECORD])
@ensure_deferred
async def test_client_that_stalls_is_counted(serve: Serve, events: list[LogEvent], sent: bytes) -> None:
    limits = LimitSettings(handshake_seconds=3)
    server = await serve(secure=True, limits=limits)
    client = server.connect()
    await server.connection_of(client)
    await client.send(sent)
    await server.advance(limits.handshake_seconds)
    await server.wait_until_closed()
    assert server.recorded.handshake_failures == ["timeout"]
    assert lines(events) == ["a TLS handshake of 127.0.0.1 failed: not complete within HANDSHAKE_TIMEOUT"]


@ensure_deferred
async def test_fault_behind_the_handshake_and_before_a_request_is_counted(tls: Server) -> None:
    """With TLS 1.3 a client may send its alert after the server's side of the handshake is complete."""
    client = await tls.client()
    os.write(client.socket.fileno(), UNDECIPHERABLE)
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == ["protocol-error"]


# Not counted.


@pytest.mark.parametrize("reset", [False, True])
@ensure_deferred
async def test_check_of_the_port_is_not_counted(tls: Server, events: list[LogEvent], *, reset: bool) -> None:
    for _ in range(3):
        client = tls.connect()
        await tls.connection_of(client)
        if reset:
            client.reset()
        else:
            client.close()
        await tls.wait_until_closed()
    assert (tls.recorded.handshake_failures, lines(events)) == ([], [])


@ensure_deferred
async def test_handshake_without_request_is_not_counted(tls: Server, events: list[LogEvent]) -> None:
    for reset in (False, True):
        client = await tls.client()
        if reset:
            client.reset()
        else:
            client.close()
        await tls.wait_until_closed()
    assert (tls.recorded.handshake_failures, lines(events)) == ([], [])


@pytest.mark.parametrize("is_complete", [False, True])
@ensure_deferred
async def test_fault_behind_a_request_is_not_counted(tls: Server, *, is_complete: bool) -> None:
    client = await tls.client()
    if is_complete:
        await client.ask("/image/0-9")
    else:
        await client.send(b"GET /image")
        await turns(tls.reactor)
    os.write(client.socket.fileno(), UNDECIPHERABLE)
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == []


@ensure_deferred
async def test_shutdown_within_the_handshake_is_not_counted(tls: Server) -> None:
    client = tls.connect()
    await tls.connection_of(client)
    await client.send(RECORD)
    await turns(tls.reactor)
    tls.factory.abort()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == []


# Plain HTTP.


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PROPFIND"])
@ensure_deferred
async def test_plain_http_is_refused_in_plain_http(tls: Server, events: list[LogEvent], method: str) -> None:
    client = tls.connect()
    await client.send(request("/image", method=method))
    (answer,) = await client.answers([method])
    assert (answer.status, answer.closes) == (400, True)
    assert answer.fields["content-type"] == "application/problem+json"
    if method != "HEAD":
        assert b'"code": "plain-http", "detail": "this port requires TLS; use https://"' in answer.body
    client.close()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == ["plain-http"]
    assert [line["status"] for line in tls.lines] == [400]
    assert lines(events) == []  # the access log has it


@ensure_deferred
async def test_first_byte_of_plain_http_is_enough(tls: Server) -> None:
    client = tls.connect()
    await client.send(b"G")
    (answer,) = await client.answers()
    assert answer.status == 400


@ensure_deferred
async def test_content_of_a_plain_request_does_not_destroy_the_response(tls: Server) -> None:
    client = tls.connect()
    await client.send(request("/image", "Content-Length: 300000", method="POST"))
    await turns(tls.reactor)
    await client.send(bytes(300_000))
    (answer,) = await client.answers()
    assert answer.status == 400


@ensure_deferred
async def test_plain_client_that_stays_is_closed(tls: Server) -> None:
    client = tls.connect()
    await client.send(request("/image"))
    await client.answers()
    await tls.wait_until_delivered(client)
    await tls.advance(LINGER_SECONDS)
    await tls.wait_until_closed()


@ensure_deferred
async def test_tls_client_in_tiny_segments_is_served(tls: Server) -> None:
    """The first segment decides, and may hold one byte."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secured = context.wrap_bio(received, sent)
    client = tls.connect()
    while True:
        try:
            secured.do_handshake()
            break
        except ssl.SSLWantReadError:
            for byte in sent.read():
                await client.send(bytes([byte]))
                await turns(tls.reactor, 1)
            received.write(await until(tls.reactor, lambda: client.receive_some() or b""))
    assert secured.version() == "TLSv1.3"
    await client.send(sent.read())  # the client's Finished
    client.close()
    await tls.wait_until_closed()
    assert tls.recorded.handshake_failures == []


@ensure_deferred
async def test_tls_on_the_port_of_plain_http_is_refused_at_once(plain: Server) -> None:
    client = plain.connect()
    with pytest.raises(ssl.SSLError):
        await plain.secure(client, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    client.close()
    await plain.wait_until_closed()
    (line,) = plain.lines
    assert (line["status"], line["code"]) == (400, "request-invalid")
    assert line["detail"] == "the client speaks TLS, and this port plain HTTP; use http://"
    assert plain.recorded.handshake_failures == []


# What OpenSSL reports.


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("ssl/tls alert bad certificate", HandshakeFailure.NOT_TRUSTED),
        ("sslv3 alert certificate unknown", HandshakeFailure.NOT_TRUSTED),
        ("sslv3 alert certificate expired", HandshakeFailure.NOT_TRUSTED),
        ("tlsv1 alert unknown ca", HandshakeFailure.NOT_TRUSTED),
        ("tlsv1 alert protocol version", HandshakeFailure.PROTOCOL_VERSION),
        ("ssl/tls alert handshake failure", HandshakeFailure.NO_SHARED_CIPHER),
        ("no suitable signature algorithm", HandshakeFailure.NO_SHARED_CIPHER),
        ("tlsv1 alert internal error", HandshakeFailure.PROTOCOL_ERROR),
        ("bad certificate", HandshakeFailure.PROTOCOL_ERROR),  # no alert of the client
    ],
)
@pytest.mark.parametrize("completed", [False, True])
def test_openssl_reasons(text: str, failure: HandshakeFailure, *, completed: bool) -> None:
    error = SSL.Error([("SSL routines", "", text)])
    assert find_failure(error, completed=completed) == (failure, text)


@pytest.mark.parametrize(
    ("error", "completed", "expected"),
    [
        (ConnectionLost(), False, (HandshakeFailure.CLOSED, "")),
        (ConnectionDone(), False, (HandshakeFailure.CLOSED, "")),
        (ConnectionLost(), True, None),
        (ConnectionDone(), True, None),
        (SSL.Error(), False, (HandshakeFailure.PROTOCOL_ERROR, "no reason")),
    ],
)
def test_ends_of_connections(
    error: Exception, expected: tuple[HandshakeFailure, str] | None, *, completed: bool
) -> None:
    assert find_failure(error, completed=completed) == expected


# The log.


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock) -> HandshakeFailures:
    return HandshakeFailures(clock, NULL_OBSERVER, RecentFailures())


TIMEOUT = "not complete within HANDSHAKE_TIMEOUT"


def test_first_failure_is_logged_at_once_and_the_others_after_a_minute(
    failures: HandshakeFailures, clock: Clock, events: list[LogEvent]
) -> None:
    for _ in range(11):
        failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
    assert lines(events) == [f"a TLS handshake of 192.0.2.7 failed: {TIMEOUT}"]
    clock.advance(SUMMARY_SECONDS - 1)
    assert lines(events) == []
    clock.advance(1)
    assert lines(events) == [f"10 TLS handshakes of 192.0.2.7 failed within 60 s: {TIMEOUT}"]


def test_client_is_named_as_in_the_access_log(failures: HandshakeFailures, events: list[LogEvent]) -> None:
    failures.record("::ffff:192.0.2.7", HandshakeFailure.TIMEOUT)
    assert lines(events) == [f"a TLS handshake of 192.0.2.7 failed: {TIMEOUT}"]
    failures.close()


def test_failures_that_go_on_are_one_line_a_minute(
    failures: HandshakeFailures, clock: Clock, events: list[LogEvent]
) -> None:
    for _ in range(30):
        failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
        clock.advance(SUMMARY_SECONDS / 10)
    assert len(lines(events)) == 1 + 3


def test_client_without_failures_for_a_minute_is_forgotten(
    failures: HandshakeFailures, clock: Clock, events: list[LogEvent]
) -> None:
    failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
    clock.advance(SUMMARY_SECONDS)
    assert clock.getDelayedCalls() == []
    failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
    assert lines(events) == [f"a TLS handshake of 192.0.2.7 failed: {TIMEOUT}"] * 2
    failures.close()


def test_clients_and_reasons_have_lines_of_their_own(
    failures: HandshakeFailures, clock: Clock, events: list[LogEvent]
) -> None:
    for _ in range(2):
        failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
        failures.record("192.0.2.7", HandshakeFailure.NOT_TRUSTED, "tlsv1 alert unknown ca")
        failures.record("2001:db8::7", HandshakeFailure.TIMEOUT)
    assert len(lines(events)) == 3
    clock.advance(SUMMARY_SECONDS)
    first, second, third = lines(events)
    assert first == f"1 TLS handshake of 192.0.2.7 failed within 60 s: {TIMEOUT}"
    assert second.startswith("1 TLS handshake of 192.0.2.7 failed within 60 s: the client does not trust the")
    assert second.endswith(" (tlsv1 alert unknown ca)")
    assert third == f"1 TLS handshake of 2001:db8::7 failed within 60 s: {TIMEOUT}"
    failures.close()


def test_clients_beyond_the_limit_share_a_line(
    failures: HandshakeFailures, clock: Clock, events: list[LogEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake_failures, "MAX_LINES", 2)
    for number in range(5):
        failures.record(f"192.0.2.{number}", HandshakeFailure.TIMEOUT)
    assert len(lines(events)) == 2
    clock.advance(SUMMARY_SECONDS)
    assert lines(events) == ["3 TLS handshakes of other clients failed within 60 s"]
    failures.record("192.0.2.4", HandshakeFailure.TIMEOUT)
    assert len(lines(events)) == 1
    failures.close()


def test_close_logs_the_rest(failures: HandshakeFailures, clock: Clock, events: list[LogEvent]) -> None:
    for _ in range(3):
        failures.record("192.0.2.7", HandshakeFailure.TIMEOUT)
    lines(events)
    failures.close()
    assert lines(events) == [f"2 TLS handshakes of 192.0.2.7 failed within 60 s: {TIMEOUT}"]
    assert clock.getDelayedCalls() == []
    failures.close()
    assert lines(events) == []
