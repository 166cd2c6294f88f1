"""The parts of the tests of replicas detect what they are for."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.replicas.mount import Mount
from tests.replicas.secrets_search import find
from tests.replicas.tcp_proxy import TcpProxy, running_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE = threading.Event()
AT_ONCE.set()
IMAGE = bytes(range(256)) * 256


@contextmanager
def serving(ranges_of: bytes, etag: str = '"a"') -> Iterator[str]:
    """Serve IMAGE as a whole, and ranges of other bytes or with another ETag; yield the host."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        refused: ClassVar[set[bool]] = set()

        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            if (wanted is None) not in self.refused:
                self.refused.add(wanted is None)
                self._answer(503, b"", {"Retry-After": "0"})
            elif wanted is None:
                self._answer(200, IMAGE, {"ETag": '"a"'})
            else:
                start, stop = map(int, wanted.removeprefix("bytes=").split("-"))
                fields = {"ETag": etag, "Content-Range": f"bytes {start}-{stop}/{len(IMAGE)}"}
                self._answer(206, ranges_of[start : stop + 1], fields)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, content: bytes, fields: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**fields, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_mount_reads_on_after_refusals() -> None:
    with serving(IMAGE) as host, closing(Mount(host, "/x")) as mount:
        mount.start()
        mount.read_ranges(50, AT_ONCE)
        assert mount.read == 50
        assert sum(mount.refused.values()) == 2


@pytest.mark.parametrize(
    ("content", "etag"), [(IMAGE.replace(b"\x80", b"\x81"), '"a"'), (IMAGE, '"b"')], ids=["byte", "ETag"]
)
def test_mount_detects_one_byte_in_256_and_another_etag(content: bytes, etag: str) -> None:
    with serving(content, etag) as host, closing(Mount(host, "/x")) as mount:
        mount.start()
        with pytest.raises(AssertionError, match="another ETag" if etag == '"b"' else "other bytes"):
            mount.read_ranges(50, AT_ONCE)


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """Return a proxy before a server that says what it gets."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=_echo, args=(listener,))
        thread.start()
        with running_proxy("127.0.0.1", listener.getsockname()) as running:
            yield running
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _echo(listener: socket.socket) -> None:
    with closing(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_echo_one, args=(connection,), daemon=True).start()


def _echo_one(connection: socket.socket) -> None:
    with connection:
        while block := connection.recv(100):
            connection.sendall(block)


def _connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 20)


def test_cut_ends_connections_and_new_ones_until_it_is_mended(proxy: TcpProxy) -> None:
    with _connect(proxy) as before:
        before.sendall(b"x")
        assert before.recv(1) == b"x"
        proxy.cut()
        assert _ends(before)
        with _connect(proxy) as meanwhile:
            assert _ends(meanwhile)
        proxy.mend()
        with _connect(proxy) as after:
            after.sendall(b"y")
            assert after.recv(1) == b"y"


def test_connection_that_hangs_goes_on_after_it_is_mended(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        proxy.hang()
        connection.sendall(b"y")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.mend()
        connection.settimeout(20)
        assert connection.recv(1) == b"y"


def _ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("offset", range(4))
def test_search_finds_a_secret_in_clear_hexadecimal_and_base64_at_any_offset(offset: int) -> None:
    secret, others = b"a secret of some length", b"x" * offset
    content = others + secret + b"behind"
    for form in (content, content.hex().encode(), base64.b64encode(content)):
        assert find([secret, b"another"], [("place", form)]) == [("place", secret)]
    assert find([secret], [("place", content[:-7])]) == []
