"""``image-service link`` without ``--admin``: which address of ``ADMIN_LISTEN`` it sends its request to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("127.0.0.2:PORT", "127.0.0.2"),
        ("0.0.0.0:PORT", "127.0.0.1"),
        ("192.0.2.1:PORT,127.0.0.1:PORT", "127.0.0.1"),
        ("127.0.0.3:0,[::1]:PORT", "[::1]"),
        ("127.0.0.3:PORT,127.0.0.4:PORT", "127.0.0.3"),
    ],
)
def test_loopback_is_preferred(run: Run, monkeypatch: pytest.MonkeyPatch, listen: str, reached: str) -> None:
    port = str(free_port())
    monkeypatch.setenv("ADMIN_LISTEN", listen.replace("PORT", port))
    assert f"cannot post to http://{reached}:{port}/api/v1/links: " in run("link", "http://x/").errors


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0", "127.0.0.1:0,[::1]:0"])
def test_unknown_port_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    monkeypatch.setenv("ADMIN_LISTEN", listen)
    assert "ADMIN_LISTEN names no address and port" in run("link", "http://x/").errors
