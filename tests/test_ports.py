"""That a port is still there when its server comes."""

from __future__ import annotations

import socket

import pytest

from tests.ports import free_port


def test_a_port_is_kept_from_whoever_takes_any() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_a_server_can_have_its_port_and_have_it_again() -> None:
    port = free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass


def test_until_a_server_comes_connections_are_refused() -> None:
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", free_port()))
