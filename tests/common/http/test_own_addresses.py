"""The machine's own addresses, beside what the program ``ip`` says."""

from __future__ import annotations

import json
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

from image_service.common.http import own_addresses
from image_service.common.http.own_addresses import find_own_addresses
from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    import pytest

LINES = """\
20010db8000000000000000000000007 02 40 00 80     eth0
20010db8000000000000000000000008 02 40 00 01     eth0
20010db8000000000000000000000009 02 40 00 a0     eth0
fe8000000000000000fc00fffe000001 02 40 20 80     eth0
fd000000000000000000000000000002 03 40 00 80     eth1
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_addresses_of_ipv4_are_those_of_the_kernel() -> None:
    shown = run_client("ip", "-json", "-4", "address")
    links: list[dict[str, Any]] = json.loads(shown)
    expected = {
        (ip_address(info["local"]), link["ifname"])
        for link in links
        for info in link["addr_info"]
        if info["scope"] == "global"
    }
    assert {(each.address, each.interface) for each in find_own_addresses(socket.AF_INET)} == expected


def test_addresses_of_ipv6_are_global_and_lasting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(LINES)
    monkeypatch.setattr(own_addresses, "_IPV6_FILE", file)
    found = [(str(each.address), each.interface) for each in find_own_addresses(socket.AF_INET6)]
    assert found == [("2001:db8::7", "eth0"), ("fd00::2", "eth1")]


def test_kernel_without_ipv6_has_no_such_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_addresses, "_IPV6_FILE", tmp_path / "absent")
    assert find_own_addresses(socket.AF_INET6) == []
