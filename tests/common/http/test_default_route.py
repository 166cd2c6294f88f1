from __future__ import annotations

import socket

import pytest

from image_service.common.http.default_route import find_default_address


class Probe(socket.socket):
    """A UDP socket that gets an address without a route."""

    source = ""

    def connect(self, _: object) -> None:
        if not self.source:
            raise OSError("no route")

    def getsockname(self) -> tuple[str, int]:
        return self.source, 40000


@pytest.mark.parametrize(
    ("family", "source", "found"),
    [
        (socket.AF_INET, "198.51.100.7", "198.51.100.7"),
        (socket.AF_INET, "169.254.3.4", "169.254.3.4"),
        (socket.AF_INET, "127.0.0.1", "None"),
        (socket.AF_INET, "", "None"),
        (socket.AF_INET6, "fd00::7", "fd00::7"),
        (socket.AF_INET6, "fe80::7%eth0", "None"),
        (socket.AF_INET6, "::1", "None"),
        (socket.AF_INET6, "", "None"),
    ],
)
def test_source_address_of_the_default_route(
    family: socket.AddressFamily, source: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probe, "source", source)
    monkeypatch.setattr(socket, "socket", Probe)
    assert str(find_default_address(family)) == found


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_it_is_an_address_of_this_machine(family: socket.AddressFamily) -> None:
    if address := find_default_address(family):
        with socket.socket(family) as listener:
            listener.bind((str(address), 0))
