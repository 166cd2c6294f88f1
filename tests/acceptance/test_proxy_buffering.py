"""An image behind a real nginx with nothing but ``proxy_pass``: it must not read ahead of a slow client.

Its default is to read a response into a temporary file of up to 1 GiB. It then reads nothing until the client
has read that, for longer than the service waits for a connection that takes no bytes.
"""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.extents import ExtentMap, Zeros
from image_service.core.images.boot_image import BootImage
from image_service.server.http.respond import Representation
from tests.acceptance.clients import needs_client
from tests.ports import free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 64 * 1024 * 1024
"""More than all buffers of two connections."""
STALL_SECONDS = 2.0
_CONFIG = """
daemon off;
master_process off;
pid {directory}/pid;
error_log {directory}/errors warn;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {directory}/temp;
    proxy_temp_path {directory}/temp;
    fastcgi_temp_path {directory}/temp;
    uwsgi_temp_path {directory}/temp;
    scgi_temp_path {directory}/temp;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""

pytestmark = pytest.mark.acceptance


def image() -> BootImage:
    return BootImage(ExtentMap((Zeros(SIZE),)), '"a"', None, "a.iso")


@attrs.define
class Upstream:
    """Sends one response to one client, until the client stops reading; counts the sent bytes."""

    head: bytes
    listener: socket.socket
    sent: int = 0
    paused: Event = attrs.field(factory=Event)
    """Set once all was sent, or nothing was taken for a while."""

    def send(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(self.head)
            connection.settimeout(STALL_SECONDS)
            chunk = bytes(65536)
            while self.sent < SIZE:
                try:
                    self.sent += connection.send(chunk[: SIZE - self.sent])
                except TimeoutError:
                    self.paused.set()
                    connection.settimeout(None)
        self.paused.set()


@contextmanager
def proxied(head: bytes, directory: Path) -> Iterator[tuple[Upstream, socket.socket]]:
    """A server with an image, and a client that has asked for it, and reads nothing yet."""
    nginx, port = needs_client("nginx"), free_port()
    upstream = Upstream(head, socket.create_server(("127.0.0.1", 0)))
    config = directory / "nginx.conf"
    (directory / "temp").mkdir()
    config.write_text(
        _CONFIG.format(directory=directory, port=port, upstream=upstream.listener.getsockname()[1])
    )
    process = subprocess.Popen([nginx, "-c", config, "-p", directory], stderr=subprocess.DEVNULL)
    sender = Thread(target=upstream.send)
    try:
        wait_for_port(port, process)
        sender.start()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n")
            yield upstream, client
        sender.join()
    finally:
        process.terminate()
        process.wait()
        upstream.listener.close()


def read_all(client: socket.socket) -> bytes:
    received = b"".join(iter(lambda: client.recv(1024 * 1024), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert len(body) == SIZE
    return head


@pytest.mark.parametrize("headers", [{}, {"range": f"bytes=0-{SIZE}"}, {"range": "bytes=0-"}])
def test_nginx_does_not_read_ahead_of_a_slow_client(headers: dict[str, str], tmp_path: Path) -> None:
    response = Representation(image()).respond("GET", headers)
    head = b"HTTP/1.0 %d OK\r\n%b\r\n" % (response.status, response.fields)
    with proxied(head, tmp_path) as (upstream, client):
        upstream.paused.wait()
        assert upstream.sent < SIZE
        received = read_all(client)
    assert b"x-accel-buffering" not in received.lower()  # for nginx itself
    assert "buffered to a temporary file" not in (tmp_path / "errors").read_text()


def test_nginx_reads_all_without_the_field(tmp_path: Path) -> None:
    """So the others would fail without it."""
    fields = Representation(image()).respond("GET", {}).fields
    bare = re.sub(rb"X-Accel-Buffering: no\r\n", b"", fields)
    assert bare != fields
    with proxied(b"HTTP/1.0 200 OK\r\n%b\r\n" % bare, tmp_path) as (upstream, client):
        while upstream.sent < SIZE:
            upstream.paused.wait(0.1)
        read_all(client)
    assert "buffered to a temporary file" in (tmp_path / "errors").read_text()
