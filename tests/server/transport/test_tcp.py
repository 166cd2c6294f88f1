from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from image_service.server.transport.sending.tcp import UNSENT_BYTES, bind, bind_together
from tests.ports import free_port


@pytest.mark.parametrize(
    ("address", "reached", "unreached"),
    [
        (None, ["127.0.0.1", "127.0.0.2", "::1"], []),
        ("::", ["127.0.0.1", "127.0.0.2", "::1"], []),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"], ["::1"]),  # noqa: S104 - for a moment
        ("127.0.0.2", ["127.0.0.2"], ["127.0.0.1", "::1"]),
        ("::1", ["::1"], ["127.0.0.1"]),
    ],
)
def test_listening_socket_is_reached_by_its_address_only(
    address: str | None, reached: list[str], unreached: list[str]
) -> None:
    port = free_port()  # of all addresses: another process may listen on a port that is free on one
    first, second = bind_together(port, 2, ip_address(address) if address else None)
    with first, second:
        for host in reached:
            socket.create_connection((host, port)).close()
        for host in unreached:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))


def test_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        bind(0, ip_address("192.0.2.1"))


def test_accepted_connection_limits_its_unsent_bytes_in_the_kernel() -> None:
    with bind(0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
