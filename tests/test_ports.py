"""A reserved port is still free when its server starts."""

from __future__ import annotations

import socket

import pytest

from tests.ports import free_port


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_reserved_port_is_not_given_to_others(address: str) -> None:
    port = free_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((address, port))


def test_server_binds_its_reserved_port_twice() -> None:
    port = free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass


def test_reserved_port_refuses_connections_until_bound() -> None:
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", free_port()))
