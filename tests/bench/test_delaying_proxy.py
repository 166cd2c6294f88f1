"""The delaying proxy, in front of a server that echoes."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from bench.delaying_proxy import delaying_proxy
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUND_TRIP_MS = 40


@pytest.fixture
def echo() -> Iterator[int]:
    """Run a server that sends back what it gets, to the end; return its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=_echo, args=(listening,))
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _echo(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)


def test_proxy_delays_and_passes_everything_until_both_ends_close(echo: int) -> None:
    port, sent = free_port(), bytes(range(256)) * 4096
    with (
        delaying_proxy(port, f"127.0.0.1:{echo}", ROUND_TRIP_MS),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        began = time.monotonic()
        sender = threading.Thread(target=_send, args=(client, sent))
        sender.start()
        received = b"".join(iter(lambda: client.recv(65536), b""))
        sender.join()
        assert received == sent
        assert time.monotonic() - began >= ROUND_TRIP_MS / 1000


def _send(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


def test_connection_is_closed_if_the_target_refuses() -> None:
    port = free_port()
    with (
        delaying_proxy(port, f"127.0.0.1:{free_port()}", 0),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        assert client.recv(1) == b""
