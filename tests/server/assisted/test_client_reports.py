"""The log events and metrics of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogLevel, formatEvent, globalLogPublisher
from zope.interface import implementer

from image_service.core.errors import ImageServiceError
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.assisted.caller import CALLER, Caller
from image_service.server.assisted.calls import IGNITION_LIMIT_BYTES
from image_service.server.assisted.client import AssistedService
from tests.ports import free_port
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import ID, SECRET, TIMEOUT_SECONDS, client_of, error_of, response
from tests.server.assisted.clocked import ClockedReactor, OneAddress
from tests.server.assisted.upstream import IGNITION, OK, upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IResolutionReceiver
    from twisted.logger import LogEvent

    from tests.server.assisted.upstream import Upstream

CHECK_URL = "check ASSISTED_SERVICE_HOST and ASSISTED_SERVICE_SCHEME"
CHECK_LOG = "see the log of assisted-service"
CONFIG = f"the Ignition config of infra-env {ID}"
INFRA_ENV = f"infra-env {ID}"
RAMDISK = f"the ramdisk of infra-env {ID}"
FETCHES: dict[str, Callable[[AssistedService], Coroutine[Any, Any, object]]] = {
    CONFIG: lambda assisted: assisted.fetch_ignition(ID, None, None),
    INFRA_ENV: lambda assisted: assisted.fetch_infra_env(ID, None),
    RAMDISK: lambda assisted: assisted.fetch_ramdisk(ID, None),
}
KINDS = {CONFIG: "ignition", INFRA_ENV: "infra-env", RAMDISK: "ramdisk"}


@implementer(ILogObserver)
@attrs.frozen
class Reports:
    """What a client logs and records."""

    events: list[LogEvent] = attrs.field(factory=list)
    records: list[tuple[str, str]] = attrs.field(factory=list)

    def __call__(self, event: LogEvent) -> None:
        self.events.append(event)

    def record(self, kind: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.records.append((kind, outcome))

    @property
    def lines(self) -> list[str | None]:
        """Return the lines of the log, without Twisted's own about listening ports."""
        return [formatEvent(event) for event in self.events if event["log_namespace"] != "log_legacy"]


@pytest.fixture
def reports() -> Iterator[Reports]:
    reports = Reports()
    globalLogPublisher.addObserver(reports)
    yield reports
    globalLogPublisher.removeObserver(reports)


@attrs.frozen
class Case:
    """An answer to a call, the log line that it causes and its outcome."""

    resource: str
    answer: bytes
    text: str
    outcome: str = "failed"
    level: object = LogLevel.warn


def refusal(status: int, outcome: str) -> Case:
    text = f"assisted-service answered {status} for {CONFIG}"
    return Case(CONFIG, response(f"{status} No"), text, outcome, LogLevel.info)


def failure(status: int, check: str, outcome: str = "failed") -> Case:
    text = f"assisted-service answered {status} for {CONFIG}; {check}"
    return Case(CONFIG, response(f"{status} No"), text, outcome)


def invalid(resource: str, body: bytes, what: str) -> Case:
    return Case(resource, response("200 OK", body), f"assisted-service: {what}")


def too_large(resource: str, limit: int) -> Case:
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {limit + 1}\r\n\r\n".encode() + b" " * (limit + 1)
    return Case(resource, answer, f"assisted-service: {resource} is larger than {limit} bytes")


ENDED = "the connection ended before the answer; does it speak HTTPS? then set ASSISTED_SERVICE_SCHEME=https"
NOT_HTTP = "the answer is not HTTP; does it speak HTTPS? then set ASSISTED_SERVICE_SCHEME=https"
CASES = (
    refusal(400, "refused"),
    refusal(401, "unauthorized"),
    refusal(403, "forbidden"),
    refusal(404, "not-found"),
    refusal(409, "refused"),
    refusal(410, "not-found"),
    refusal(422, "refused"),
    failure(204, CHECK_LOG),
    failure(302, CHECK_URL, "refused"),
    failure(407, CHECK_LOG, "refused"),
    failure(418, CHECK_LOG, "refused"),
    failure(500, CHECK_LOG),
    failure(503, CHECK_LOG),
    Case(CONFIG, response("429 No"), f"assisted-service answered 429 for {CONFIG}", "refused"),
    invalid(CONFIG, b"<html>", f"{CONFIG}, 6 bytes, is not JSON"),
    invalid(CONFIG, b"", f"{CONFIG}, 0 bytes, is not JSON"),
    Case(
        CONFIG,
        response("200 OK", b'{"ignition": 1}'),
        f"assisted-service sent {CONFIG}: the Ignition config's 'ignition' is not an object",
        "refused",
    ),
    invalid(INFRA_ENV, b"<html>", f"{INFRA_ENV} is not JSON"),
    invalid(INFRA_ENV, b"[" * 100_000, f"{INFRA_ENV} is not JSON"),
    invalid(INFRA_ENV, b"[]", f"{INFRA_ENV} is not a JSON object"),
    invalid(INFRA_ENV, b'{"type": 1}', f"type of {INFRA_ENV} is not a string"),
    invalid(INFRA_ENV, b'{"kernel_arguments": "x"}', f"kernel_arguments of {INFRA_ENV} is not JSON"),
    invalid(INFRA_ENV, b'{"kernel_arguments": "{}"}', f"kernel_arguments of {INFRA_ENV} is not a list"),
    invalid(
        INFRA_ENV,
        b'{"kernel_arguments": "[1]"}',
        f"kernel_arguments of {INFRA_ENV}: number 1 is not an operation with a value",
    ),
    invalid(RAMDISK, b"<html>", f"{RAMDISK}, 6 bytes, is not an archive of gzip, xz, zstd or cpio"),
    too_large(CONFIG, IGNITION_LIMIT_BYTES),
    Case(
        CONFIG,
        OK.replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
        f"assisted-service: {CONFIG} has a content coding, which was not requested",
    ),
    Case(CONFIG, OK[:-1], f"assisted-service: {CONFIG} ended early, after 31 bytes"),
    Case(
        CONFIG,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        f"assisted-service: {CONFIG} ended early, after 0 bytes",
    ),
    Case(CONFIG, b"", f"assisted-service: no answer for {CONFIG}: {ENDED}; else {CHECK_LOG}"),
    Case(
        CONFIG,
        b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n",
        f"assisted-service: no answer for {CONFIG}: {NOT_HTTP}; else check ASSISTED_SERVICE_HOST",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.answer[:30]!r}: {case.text}")
@ensure_deferred
async def test_failed_call_is_logged_and_recorded_once(
    reactor: EPollReactor, reports: Reports, case: Case
) -> None:
    async with upstream(reactor) as server:
        server.answer, server.close = case.answer, True
        assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}", record=reports.record)
        with pytest.raises(ImageServiceError):
            await FETCHES[case.resource](assisted)
        await assisted.close()
    assert reports.lines == [f"{case.text} (http://127.0.0.1:{server.port})"]
    assert [event["log_level"] for event in reports.events if "upstream" in event] == [case.level]
    assert reports.records == [(KINDS[case.resource], case.outcome)]


@ensure_deferred
async def test_successful_call_is_recorded_and_logs_nothing(reactor: EPollReactor, reports: Reports) -> None:
    async with upstream(reactor) as server:
        server.answer = OK
        reports.events.clear()
        assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}", record=reports.record)
        await assisted.fetch_ignition(ID, None, None)
        await assisted.close()
        assert list(map(formatEvent, reports.events)) == []
    assert reports.records == [("ignition", "ok")]


@pytest.mark.parametrize("resource", FETCHES)
@ensure_deferred
async def test_refused_connection_is_logged_once(
    reactor: EPollReactor, reports: Reports, resource: str
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assisted = AssistedService(reactor, url)
    await error_of(FETCHES[resource](assisted))
    await assisted.close()
    reason = "it refuses the connection; check ASSISTED_SERVICE_HOST and that it is running"
    assert reports.lines == [f"assisted-service: no answer for {resource}: {reason} ({url})"]


class NoNames:
    """A resolver that knows no name."""

    def resolveHostName(self, receiver: IResolutionReceiver, *_: object, **__: object) -> object:
        receiver.resolutionBegan(self)  # type: ignore[arg-type]  # nobody cancels it
        receiver.resolutionComplete()
        return self


@ensure_deferred
async def test_unknown_host_is_logged_once_with_its_name(reactor: EPollReactor, reports: Reports) -> None:
    clocked: Any = ClockedReactor(reactor)
    clocked.nameResolver = NoNames()
    url = "https://no-such-host.invalid:8090"
    assisted = AssistedService(clocked, url)
    await error_of(assisted.fetch_infra_env(ID, None))
    await assisted.close()
    reason = "its host name does not resolve; check ASSISTED_SERVICE_HOST and DNS"
    assert reports.lines == [f"assisted-service: no answer for {INFRA_ENV}: {reason} ({url})"]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example", ".".join(["a" * 63] * 4)])
@ensure_deferred
async def test_what_is_not_a_host_name_does_not_resolve(
    reactor: EPollReactor, scheme: str, host: str
) -> None:
    assisted = AssistedService(reactor, f"{scheme}://{host}:8090")
    error = await error_of(assisted.fetch_infra_env(ID, None))
    await assisted.close()
    assert (error.code, error.retry_after_seconds) == ("upstream-failed", 5)
    assert "its host name" in error.detail


@pytest.mark.parametrize("host", ["assisted_service", "xn--a.example", "a-.example", "x" * 63])
@ensure_deferred
async def test_name_that_the_network_may_have_is_resolved(reactor: EPollReactor, host: str) -> None:
    clocked: Any = ClockedReactor(reactor)
    clocked.nameResolver = OneAddress()
    async with upstream(reactor) as server:
        assisted = AssistedService(clocked, f"http://{host}:{server.port}")
        assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
        await assisted.close()
        assert f"\r\nHost: {host}:{server.port}\r\n".encode() in server.requests[0]


@pytest.mark.parametrize("deadline", ["silence_timeout_seconds", "upstream_timeout_seconds"])
@pytest.mark.parametrize("answer", [b"", OK[:-1]])
@ensure_deferred
async def test_slow_answer_is_logged_once(
    reactor: EPollReactor, reports: Reports, deadline: str, answer: bytes
) -> None:
    clocked: Any = ClockedReactor(reactor)
    limits: dict[str, Any] = {deadline: TIMEOUT_SECONDS}
    async with upstream(reactor) as server, client_of(clocked, server, **limits) as assisted:
        server.answer = answer
        fetching = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        while not server.requests:
            await deferLater(reactor, 0.005)
        await deferLater(reactor, 0.05)  # the head of the response arrives, if there is one
        clocked.clock.advance(TIMEOUT_SECONDS)
        error = await fetching
    assert reports.lines == [f"{error.detail} (http://127.0.0.1:{server.port})"]
    assert [event["log_level"] for event in reports.events if "upstream" in event] == [LogLevel.warn]


# What a line names.


def identified(answer: bytes, value: bytes) -> bytes:
    return answer.replace(b"\r\n", b"\r\nX-Request-ID: " + value + b"\r\n", 1)


@pytest.mark.parametrize(
    "answer",
    [
        response("503 No"),
        response("200 OK", b"<html>"),
        OK.replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
        OK[:-1],
    ],
)
@ensure_deferred
async def test_line_names_both_requests(reactor: EPollReactor, reports: Reports, answer: bytes) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer, server.close = identified(answer, b"their-1"), True
        CALLER.set(Caller("", reactor.seconds(), "ours-2"))
        error = await error_of(assisted.fetch_ignition(ID, None, None))
    assert reports.lines == [
        f"{error.detail} (http://127.0.0.1:{server.port}, its X-Request-ID their-1, for request ours-2)"
    ]
    (event,) = (event for event in reports.events if "upstream" in event)
    assert (event["upstream"], event["upstream_id"], event["id"]) == (
        f"127.0.0.1:{server.port}",
        "their-1",
        "ours-2",
    )


@pytest.mark.parametrize("value", [b"a b", b"\xff", b"x" * 1000, b'"'])
@ensure_deferred
async def test_invalid_identifier_is_not_logged(
    reactor: EPollReactor, reports: Reports, value: bytes
) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = identified(response("503 No"), value)
        await error_of(assisted.fetch_ignition(ID, None, None))
    (line,) = reports.lines
    assert str(line).endswith(f"(http://127.0.0.1:{server.port})")


@ensure_deferred
async def test_line_holds_neither_credentials_nor_content(reactor: EPollReactor, reports: Reports) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        for answer in (response("503 No", b"content"), response("200 OK", b"content"), b"content\r\n\r\n"):
            server.answer, server.close = answer, True
            for scheme in CredentialScheme:
                await error_of(assisted.fetch_ignition(ID, None, Credentials(scheme, SECRET)))
    text = repr(reports.events)
    assert len(reports.lines) == 9
    assert SECRET not in text
    assert "content" not in "".join(map(str, reports.lines))


# Rate.


def break_in_turn(server: Upstream, number: int) -> None:
    server.answer = response("503 No") if number % 2 else response("200 OK", b"x" * number)


@ensure_deferred
async def test_sixty_failures_make_few_lines_and_count_the_others(
    reactor: EPollReactor, reports: Reports
) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor) as server, client_of(clocked, server) as assisted:
        for number in range(60):
            break_in_turn(server, number)
            await error_of(assisted.fetch_ignition(ID.replace("9", str(number % 8)), None, None))
        assert len(reports.lines) == 10  # five of each cause
        reports.events.clear()
        clocked.clock.advance(60)
        for number in range(2):
            break_in_turn(server, number)
            await error_of(assisted.fetch_ignition(ID, None, None))
    assert len(reports.lines) == 2
    for line in reports.lines:
        assert str(line).endswith("25 more like this were not logged)")


@ensure_deferred
async def test_another_cause_has_lines_of_its_own(reactor: EPollReactor, reports: Reports) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        server.answer = response("503 No")
        for _ in range(10):
            await error_of(assisted.fetch_ignition(ID, None, None))
        reports.events.clear()
        server.answer = response("403 No")
        await error_of(assisted.fetch_ignition(ID, None, None))
    assert len(reports.lines) == 1


@ensure_deferred
async def test_call_that_close_cancels_logs_nothing(reactor: EPollReactor, reports: Reports) -> None:
    async with upstream(reactor) as server:
        server.answer = b""
        assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}", record=reports.record)
        fetching = Deferred.fromCoroutine(assisted.fetch_ignition(ID, None, None))
        while not server.requests:
            await deferLater(reactor, 0.005)
        await assisted.close()
        with pytest.raises(CancelledError):
            await fetching
    assert reports.lines == []
    assert reports.records == []
