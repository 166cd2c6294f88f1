"""Which files are accepted as NetworkManager keyfiles."""

from __future__ import annotations

import pytest

from image_service.core.errors import KeyfileInvalid
from image_service.core.families.coreos.network_keyfiles import check_keyfile


@pytest.mark.parametrize(
    "name",
    [
        "eth0.nmconnection",
        "Wired connection 1.nmconnection",
        "a:b@c+d=e,f.nmconnection",
        "Café 2.nmconnection",
        "有线连接.nmconnection",
        "-.nmconnection",
        "~office*(1).nmconnection",
        "ä" * 121 + ".nmconnection",
    ],
)
def test_keyfile_is_accepted(name: str) -> None:
    check_keyfile(name, b"# comment\n\n[connection]\r\nid=a\n")


@pytest.mark.parametrize(
    "name",
    [
        "eth0",
        "eth0.nmconnection~",
        "a/b.nmconnection",
        ".nmconnection",
        ".a.nmconnection",
        "a\n.nmconnection",
        "a\0.nmconnection",
        "\udcff.nmconnection",
        "ä" * 122 + ".nmconnection",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(KeyfileInvalid, match=r"NAME\.nmconnection"):
        check_keyfile(name, b"[connection]\n")


@pytest.mark.parametrize(
    "content", [b"", b"id=secret\n", b"# c\n", b"[secret\n", b"[a]\nb=\0secret\n", b"\xff"]
)
def test_other_contents_are_refused_without_quoting_them(content: bytes) -> None:
    with pytest.raises(KeyfileInvalid) as refused:
        check_keyfile("a.nmconnection", content)
    assert "secret" not in refused.value.detail
