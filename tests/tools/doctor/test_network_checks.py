from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from image_service.tools.doctor.network_checks import check_network
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.doctor.target import ImageUrl
from tests.tools.doctor.image_server import serving

if TYPE_CHECKING:
    from collections.abc import Sequence


def check(
    url: str, addresses: Sequence[str], profile: ClientProfile | None = None
) -> dict[str, tuple[str, str]]:
    """Check a URL whose host has these addresses."""

    def resolve(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("image_service.tools.doctor.network_checks.socket.getaddrinfo", resolve)
        patch.setattr("image_service.tools.doctor.network_checks._connect", connect)
        outcomes = list(check_network(ImageUrl.parse(url), profile))
    return {outcome.name: (str(outcome.status), outcome.detail) for outcome in outcomes}


def connect(address: str, _port: int) -> float | str:
    return "Connection refused" if address.endswith(".9") else 0.001


def test_name_is_a_warning_for_bmcs_alone() -> None:
    url, addresses = "http://images.example.com/a.iso", ["192.0.2.1"]
    assert check(url, addresses)["dns"][0] == "warn"
    assert check(url, addresses, ClientProfile.IDRAC)["dns"][0] == "warn"
    assert check(url, addresses, ClientProfile.QEMU)["dns"][0] == "ok"
    assert check("http://192.0.2.1/a.iso", addresses)["dns"][0] == "ok"


def test_each_address_is_tried() -> None:
    url = "http://images.example.com/a.iso"
    assert check(url, ["192.0.2.1", "192.0.2.2"])["tcp"][0] == "ok"
    assert check(url, ["192.0.2.1", "192.0.2.9"])["tcp"] == ("warn", "192.0.2.9 port 80: Connection refused")
    assert check(url, ["192.0.2.9"])["tcp"][0] == "fail"


def test_name_that_does_not_resolve_is_a_failure() -> None:
    found = check("http://images.example.com/a.iso", [])
    assert found == {"dns": ("fail", "images.example.com does not resolve: Name or service not known")}


def test_ipv6_literal_is_reached() -> None:
    with serving(b"image") as url:
        outcomes = list(check_network(ImageUrl.parse(url.replace("127.0.0.1", "[::ffff:127.0.0.1]")), None))
    assert str(outcomes[1].status) == "ok"
