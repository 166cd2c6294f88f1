"""A reserved port is still free when its server starts."""

from __future__ import annotations

import socket

import pytest

from tests.ports import free_port


def test_reserved_port_is_not_given_to_others() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_server_binds_its_reserved_port_twice() -> None:
    port = free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass


def test_reserved_port_refuses_connections_until_bound() -> None:
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", free_port()))
