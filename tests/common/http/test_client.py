"""The HTTP client against servers that answer byte for byte as scripted."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http import client as client_module
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import Disconnected, HttpError, TooSlow
from image_service.common.http.origins import AllowedOrigins, Proxy, origin_of_url
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import UnsafeImage

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
WHOLE = HEAD + b"\r\nbody"


@attrs.define
class ScriptedServer:
    """A server.

    Args:
        port: of it.
        requests: heads, as they came.
        connections: that were accepted.
    """

    port: int
    requests: list[bytes] = attrs.field(factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/a"


@contextmanager
def answering(*answers: bytes, per_connection: int = 1, holds: bool = False) -> Iterator[ScriptedServer]:
    """Answer requests in order, so many on each connection, which is then closed, or held until the end."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(listener.getsockname()[1])
        left = list(answers)

        def answer(accepted: socket.socket) -> None:
            with accepted:
                for _ in range(per_connection):
                    request = b""
                    while b"\r\n\r\n" not in request and (received := accepted.recv(65536)):
                        request += received
                    if not request or not left:  # the client has closed, or what came is a body
                        return
                    server.requests.append(request)
                    accepted.sendall(left.pop(0))
                if holds:
                    ended.wait()

        def accept() -> None:
            with suppress(OSError):  # it is shut down
                while True:
                    accepted, _ = listener.accept()
                    server.connections += 1
                    threads.append(threading.Thread(target=answer, args=(accepted,)))
                    threads[-1].start()

        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield server
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def make_client(limits: RequestLimits | None = None, **options: Any) -> HttpClient:
    return HttpClient(client_context, limits or RequestLimits(), **options)


def get(client: HttpClient, url: str) -> bytes:
    with client.send("GET", url, {}) as response:
        return b"".join(response.blocks())


@pytest.mark.parametrize("status", [100, 102, 103])
def test_interim_responses_are_skipped(status: int) -> None:
    interim = f"HTTP/1.1 {status} Wait\r\nLink: </x>\r\n\r\n".encode()
    with answering(3 * interim + WHOLE) as server:
        assert get(make_client(), server.url) == b"body"


def test_interim_responses_without_end_are_refused() -> None:
    with (
        answering(200 * b"HTTP/1.1 102 Processing\r\n\r\n" + WHOLE) as server,
        pytest.raises(HttpError, match="more than 100 interim responses"),
    ):
        get(make_client(), server.url)


def test_blanks_around_a_value_are_not_part_of_it() -> None:
    with (
        answering(HEAD + b'ETag: \t "v1" \t\r\nX-Empty:  \r\n\r\nbody') as server,
        make_client().send("GET", server.url, {}) as response,
    ):
        assert (response.field("etag"), response.field("X-Empty")) == ('"v1"', "")


def test_head_may_have_many_fields() -> None:
    with answering(HEAD + b"X-Many: 1\r\n" * 200 + b"\r\nbody") as server:
        assert get(make_client(), server.url) == b"body"


@pytest.mark.parametrize(
    ("field", "coding"),
    [
        (b"", ""),
        (b"Content-Encoding: \r\n", ""),
        (b"Content-Encoding: Identity\r\n", ""),
        (b"Content-Encoding: aws-chunked\r\n", ""),
        (b"Content-Encoding: identity,,\tIDENTITY\r\n", ""),
        (b"Content-Encoding: aws-chunked, GZIP\r\n", "gzip"),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", "gzip"),
        (b"content-encoding: zstd\r\nContent-Encoding: br\r\n", "zstd, br"),
        (b"Content-Encoding: br\r\n", "br"),
    ],
)
def test_codings_of_the_body_are_named(field: bytes, coding: str) -> None:
    with (
        answering(HEAD + field + b"\r\nbody") as server,
        make_client().send("GET", server.url, {}) as response,
    ):
        assert response.coding == coding


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the connection ended without a response"),
        (b"HTTP/1.1 200", "the connection ended without a response"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "what it sent is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "what it sent is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + bytes(70_000), "sent a head of more than 64 KiB"),
        (HEAD + b"\r\nbo", "sent 2 of 4 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbo", "ended within the body"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n", "what it sent is not HTTP/1.1"),
    ],
)
def test_failure_names_the_cause_and_nothing_that_the_server_sent(answer: bytes, reason: str) -> None:
    with answering(answer) as server, pytest.raises(HttpError) as failure:
        get(make_client(), server.url)
    assert reason in str(failure.value)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://a..b/", "its name does not resolve: it is not a host name"),
        (f"http://{'a' * 64}.example/", "its name does not resolve: it is not a host name"),
        ("http://h:port/", "its URL is not a valid http or https URL"),
        ("file:///etc/passwd", "its URL is not a valid http or https URL"),
        ("http:///path", "its name does not resolve: it is not a host name"),
        (f"http://{'.'.join(['a' * 63] * 4)}/", "its name does not resolve: it is not a host name"),
        ("http://a%2F.example/", "its name does not resolve: it is not a host name"),
        ("http://b%FCcher.example/", "its name does not resolve: it is not a host name"),
        ("http://stra\u00dfe.example/", "its name does not resolve: it is not a host name"),
        ("http://nowhere.invalid/", "its name does not resolve: "),
    ],
)
def test_url_that_leads_nowhere_is_told(url: str, reason: str) -> None:
    with pytest.raises(HttpError, match=reason) as failure:
        get(make_client(), url)
    assert not failure.value.is_connected


@pytest.mark.parametrize("host", ["b\u00fccher.example", "b%C3%BCcher.example", "XN--bcher-kva.example"])
def test_internationalized_name_is_sent_in_ascii(host: str) -> None:
    with answering(WHOLE) as server:
        asked: list[str] = []

        def find_proxy(url: str) -> Proxy:
            asked.append(url)
            return Proxy("127.0.0.1", server.port)

        get(make_client(find_proxy=find_proxy), f"http://{host}/a")
    assert asked == ["http://xn--bcher-kva.example/"]
    assert server.requests[0].startswith(b"GET http://xn--bcher-kva.example/a HTTP/1.1\r\n")


def test_target_is_percent_encoded() -> None:
    with answering(WHOLE) as server:
        get(make_client(), f"{server.url} b/ä?c=%41&d=e f#g")
    assert server.requests[0].startswith(b"GET /a%20b/%C3%A4?c=%41&d=e%20f HTTP/1.1\r\n")


def test_nothing_but_these_fields_is_sent() -> None:
    with answering(WHOLE) as server:
        get(make_client(), server.url.replace("http://", "http://user:password@"))
    names = [line.partition(b":")[0] for line in server.requests[0].splitlines()[1:-1]]
    assert sorted(names) == [b"Accept-Encoding", b"Connection", b"Host"]


def test_secret_in_a_field_that_cannot_be_sent_is_not_told() -> None:
    with answering(b"") as server, pytest.raises(HttpError, match="cannot be written") as failure:  # noqa: SIM117
        with make_client().send("GET", server.url, {"X-Key": "top-secret\r\nX: y"}):
            pass
    assert "top-secret" not in str(failure.value)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 4\r\n\r\nbody", b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"]
)
def test_connection_is_kept(framing: bytes) -> None:
    client = make_client(max_idle=1)
    with answering(*3 * [b"HTTP/1.1 200 OK\r\n" + framing], per_connection=3) as server:
        assert [get(client, server.url) for _ in range(3)] == 3 * [b"body"]
        assert server.connections == 1
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Connection: close\r\n\r\nbody",
        WHOLE.replace(b"1.1", b"1.0"),
        WHOLE + b"more",
        b"HTTP/1.1 200 OK\r\n\r\nbody",
    ],
)
def test_connection_is_not_kept(answer: bytes) -> None:
    client = make_client(max_idle=1)
    with answering(answer, answer) as server:
        assert [get(client, server.url) for _ in range(2)] == 2 * [b"body"]
        assert server.connections == 2


def test_request_is_sent_again_if_the_server_has_closed_a_kept_connection() -> None:
    client = make_client(max_idle=1)
    with answering(WHOLE, WHOLE) as server:
        assert [get(client, server.url) for _ in range(2)] == 2 * [b"body"]
        client.close()


@pytest.mark.parametrize("body", [b"order", None])
def test_order_is_sent_on_a_connection_of_its_own(body: bytes | None) -> None:
    """A kept connection may be closed meanwhile, and an order is not sent twice."""
    client = make_client(max_idle=1)
    with answering(WHOLE, WHOLE, per_connection=2) as server:
        get(client, server.url)
        with client.send("POST", server.url, {}, body) as response:
            assert response.read(9) == b"body"
        client.close()
        assert server.connections == 2


def test_refusal_is_read_before_the_body_is() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    with (
        answering(refusal, holds=True) as server,
        make_client().send("PUT", server.url, {}, bytes(100)) as response,
    ):
        assert response.status == 413


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200", HEAD + b"\r\nbo", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
)
def test_silent_server_is_given_up(answer: bytes) -> None:
    limits = RequestLimits(stall_seconds=0.05, slow="too slow for us")
    with answering(answer, holds=True) as server, pytest.raises(TooSlow, match="too slow for us"):
        get(make_client(limits), server.url)


def test_request_has_a_deadline_though_bytes_arrive() -> None:
    with answering(HEAD + b"\r\nbo", holds=True) as server, pytest.raises(TooSlow):
        get(make_client(RequestLimits(stall_seconds=60, total_seconds=0.1)), server.url)


def test_time_of_the_reader_is_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    limits = RequestLimits(stall_seconds=60, stall_bytes=1 << 20)
    with answering(WHOLE) as server, make_client(limits).send("GET", server.url, {}) as response:
        now[0] += 600
        assert response.read(4) == b"body"


def test_interruption_ends_a_request_that_waits() -> None:
    interruption = Interruption()
    with answering(HEAD, holds=True) as server:
        timer = threading.Timer(0.05, interruption.interrupt)
        timer.start()
        with pytest.raises(Interrupted):
            get(make_client(interruption=interruption), server.url)
        timer.join()


# Addresses.


def test_checked_address_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name has a public address when it is checked, and would have another one afterwards."""
    resolved: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        resolved.append(host)
        address = ("192.0.2.1", port) if len(resolved) == 1 else ("127.0.0.1", port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]

    connected: list[Any] = []

    class Recorded(socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address)
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("socket.socket", Recorded)
    checked: list[str] = []
    client = make_client(check_address=lambda _, address: checked.append(address))
    with pytest.raises(HttpError, match="Connection refused"):
        get(client, "http://rebinding.example/a")
    assert (resolved, checked, connected) == (["rebinding.example"], ["192.0.2.1"], [("192.0.2.1", 80)])


def test_address_that_is_not_allowed_gets_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        allowed = AllowedOrigins(frozenset(), origin_of_url(url, "the URL"))
        with pytest.raises(UnsafeImage, match="is not public"):
            get(make_client(check_address=allowed.check_address), url)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_unused_connection_is_not_used_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(max_idle=1)
    monkeypatch.setattr(client_module, "MAX_IDLE_SECONDS", -1.0)
    with answering(WHOLE, WHOLE, per_connection=1) as server:
        for _ in range(2):
            get(client, server.url)
        assert server.connections == 2
        client.close()


def test_disconnected_is_told_apart() -> None:
    with answering(b"") as server, pytest.raises(Disconnected):
        get(make_client(), server.url)
