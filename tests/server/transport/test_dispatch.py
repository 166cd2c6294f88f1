"""The exchanges of a connection, without the connection."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.core.errors import Unavailable
from image_service.core.extents import Zeros
from image_service.server.http.head import Request
from image_service.server.http.problem import problem
from image_service.server.http.response import Response
from image_service.server.transport.admission.connection_limit import Admission
from image_service.server.transport.admission.counts import Counts
from image_service.server.transport.admission.slot_pool import LocalSlotPool
from image_service.server.transport.admission.slots import SMALL_BYTES, Slots
from image_service.server.transport.context import ConnectionContext
from image_service.server.transport.dispatch import Dispatcher
from image_service.server.transport.exchanges.access_log import COMPLETE, AccessLog
from image_service.server.transport.exchanges.exchange import Exchange, PreparedResponse
from image_service.server.transport.exchanges.failures import RecentFailures
from image_service.server.transport.sending.observer import AbortReason
from image_service.settings.network import LimitSettings
from tests.server.transport.recording_observer import RecordingObserver

if TYPE_CHECKING:
    from tests.conftest import LoggedFailures

REQUEST = Request("HEAD", "/a", {}, keep_alive=True)
SMALL = PreparedResponse(Response(200, b"Content-Length: 1\r\n", (Zeros(1),), 1))
DOWNLOAD = PreparedResponse(Response(200, b"", (Zeros(SMALL_BYTES + 1),), SMALL_BYTES + 1))


@attrs.define(eq=False)
class Setting:
    """A dispatcher with a request handler that returns what the test says."""

    returned: PreparedResponse | Deferred[PreparedResponse] = SMALL
    downloads: int = 1
    clock: Clock = attrs.field(factory=Clock)
    observer: RecordingObserver = attrs.field(factory=RecordingObserver)
    lines: list[dict[str, Any]] = attrs.field(factory=list)
    sent: list[PreparedResponse] = attrs.field(factory=list)
    aborts: list[AbortReason] = attrs.field(factory=list)
    failures: RecentFailures = attrs.field(factory=RecentFailures)
    slots: Slots = attrs.field(init=False)
    dispatcher: Dispatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots = Slots(
            LocalSlotPool(self.downloads, Counts()),
            0,
            1,
            min_rate=0,
            clock=self.clock,
            observer=self.observer,
        )
        log = AccessLog(self.clock, observer=lambda event: self.lines.append(event["log_fields"]))  # type: ignore[arg-type] # a function is an observer
        context = ConnectionContext(
            clock=self.clock,
            handler=self,
            page_cache=Mock(),
            sendfile_threads=Mock(),
            access_log=log,
            limits=LimitSettings(),
            slots=self.slots,
            connection_limit=Mock(),
            observer=self.observer,
            handshake_failures=Mock(),
            failures=self.failures,
            proxies=(ip_network("192.0.2.0/24"),),
        )
        self.dispatcher = Dispatcher(
            context,
            Mock(),
            "192.0.2.1",
            Admission("192.0.2.1", overloaded=False),
            send=lambda _exchange, prepared: self.sent.append(prepared),
            abort=lambda reason, _detail: self.aborts.append(reason),
        )

    def handle(
        self,
        request: Request,
        address: str,
        *,
        overloaded: bool,
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Return what the test says."""
        assert (address, overloaded) == (request.headers.get("x-forwarded-for", "192.0.2.1"), False)
        return self.returned

    def exchange(self) -> Exchange:
        """Return a new exchange."""
        return Exchange("HEAD", REQUEST, self.clock.seconds())


def test_known_small_response_is_returned() -> None:
    setting = Setting()
    assert setting.dispatcher.dispatch(setting.exchange(), REQUEST) is SMALL
    assert (setting.sent, setting.slots.acquired) == ([], 0)


def test_request_handler_gets_the_address_that_a_trusted_proxy_reports() -> None:
    request = attrs.evolve(REQUEST, headers={"x-forwarded-for": "203.0.113.9"})
    setting = Setting()
    assert setting.dispatcher.dispatch(setting.exchange(), request) is SMALL


def test_late_response_is_sent_by_the_callback() -> None:
    later: Deferred[PreparedResponse] = Deferred()
    setting = Setting(later)
    assert setting.dispatcher.dispatch(setting.exchange(), REQUEST) is None
    assert setting.sent == []
    later.callback(SMALL)
    assert setting.sent == [SMALL]


def test_download_holds_a_slot_until_its_exchange_ends() -> None:
    setting = Setting(DOWNLOAD)
    exchange = setting.exchange()
    setting.dispatcher.dispatch(exchange, REQUEST)
    assert (setting.sent, setting.slots.acquired) == ([DOWNLOAD], 1)
    setting.dispatcher.end_exchange(exchange, 0, COMPLETE)
    assert (exchange.is_over, setting.slots.acquired) == (True, 0)


def test_download_without_a_slot_is_refused() -> None:
    setting = Setting(DOWNLOAD, downloads=0)
    setting.dispatcher.dispatch(setting.exchange(), REQUEST)
    (refusal,) = setting.sent
    assert (refusal.response.status, refusal.response.code) == (503, "unavailable")


def test_exchange_that_is_over_acquires_no_slot() -> None:
    later: Deferred[PreparedResponse] = Deferred()
    setting = Setting(later)
    exchange = setting.exchange()
    setting.dispatcher.dispatch(exchange, REQUEST)
    setting.dispatcher.end_exchange(exchange, 0, "the client is gone")
    later.callback(DOWNLOAD)
    assert setting.slots.acquired == 0


def test_failing_handler_aborts_and_is_logged(logged_failures: LoggedFailures) -> None:
    later: Deferred[PreparedResponse] = Deferred()
    setting = Setting(later)
    setting.dispatcher.dispatch(setting.exchange(), REQUEST)
    later.errback(ValueError("a fault"))
    assert (setting.sent, setting.aborts) == ([], [AbortReason.INTERNAL_ERROR])
    assert len(logged_failures.flush(ValueError)) == 1


@pytest.mark.parametrize("can_continue", [False, True])
def test_head_announces_whether_the_connection_persists(*, can_continue: bool) -> None:
    setting = Setting()
    exchange = setting.exchange()
    head = setting.dispatcher.start_response(exchange, SMALL, can_continue=can_continue)
    assert (b"Connection: close\r\n" in head) is not can_continue
    assert exchange.keep_alive is can_continue


def test_current_response_is_repeated_for_the_same_request() -> None:
    setting = Setting()
    prepared = attrs.evolve(SMALL, is_current=lambda now: now < 5)
    setting.dispatcher.start_response(setting.exchange(), prepared, can_continue=True)
    repeated = Exchange("HEAD", REQUEST, 4)
    assert setting.dispatcher.get_repeated(repeated) is prepared
    assert repeated.is_repeated
    for other in Exchange("HEAD", REQUEST, 5), Exchange("HEAD", attrs.evolve(REQUEST, target="/b"), 4):
        assert setting.dispatcher.get_repeated(other) is None
        assert not other.is_repeated


def test_ended_exchange_is_recorded_once_with_its_line() -> None:
    ended: list[bool] = []
    setting = Setting()
    exchange = setting.exchange()
    prepared = attrs.evolve(SMALL, on_end=lambda: ended.append(True))
    setting.dispatcher.start_response(exchange, prepared, can_continue=True)
    setting.clock.advance(2)
    setting.dispatcher.end_exchange(exchange, 1, COMPLETE)
    assert setting.observer.requests == [("", "HEAD", 200, 2, 1)]
    assert [(line["status"], line["bytes"], line["ended"]) for line in setting.lines] == [(200, 1, COMPLETE)]
    assert ended == [True]


@pytest.mark.parametrize(
    "requested", ["bytes=u-u", "bytes=%u-%u", "bytes=zu-zu", "bytes=lu-lu", "bytes=zd-zd", "bytes=u-"]
)
def test_range_of_a_broken_ipxe_is_a_warning_that_says_what_to_rebuild(requested: str) -> None:
    setting = Setting()
    start(setting, {"range": requested}, SMALL)
    ((_, client, reason, _, path, status, *_),) = setting.failures.collect()
    assert (client, path, status) == ("192.0.2.1", "/images", 200)
    assert f"asked for {requested}" in reason
    assert "rebuild iPXE for x86_64" in reason


@pytest.mark.parametrize(
    ("requested", "status"),
    [
        ("bytes=0-5", 206),
        ("bytes=5-1", 200),
        ("bytes=-", 200),
        ("pages=u-u", 200),
        ("", 200),
        ("bytes=u-u", 416),
    ],
)
def test_other_ranges_are_no_warning(requested: str, status: int) -> None:
    setting = Setting()
    start(setting, {"range": requested}, PreparedResponse(Response(status, b"")))
    assert setting.failures.collect() == []


def test_doubts_about_an_image_are_warnings_unless_it_is_refused() -> None:
    setting = Setting()
    doubtful = attrs.evolve(SMALL, warnings=("the ramdisk is zstd",))
    start(setting, {}, doubtful)
    ((_, client, reason, _, path, status, *_),) = setting.failures.collect()
    assert (client, reason, path, status) == ("192.0.2.1", "the ramdisk is zstd", "/images", 200)
    start(setting, {}, attrs.evolve(doubtful, response=problem(Unavailable("full"), {})))
    assert setting.failures.collect() == []


def start(setting: Setting, headers: dict[str, str], prepared: PreparedResponse) -> None:
    request = Request("GET", "/images", headers, keep_alive=True)
    setting.dispatcher.start_response(Exchange("GET", request, 0.0), prepared, can_continue=True)
