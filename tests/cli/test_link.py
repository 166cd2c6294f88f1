"""``image-service link`` without ``--admin``: which address of ``ADMIN_LISTEN`` it sends its request to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from image_service.cli import link
from image_service.cli.shared import admin
from tests.ports import free_port
from tests.server.catalog.origin import Reply, running

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


def test_without_any_address_that_of_make_run_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_LISTEN", "")
    assert admin.DEFAULT_ADMIN == "http://127.0.0.1:8081"
    monkeypatch.setattr(admin, "DEFAULT_ADMIN", f"http://127.0.0.1:{free_port()}")
    assert f"cannot post to {admin.DEFAULT_ADMIN}/api/v1/links: " in run("link", "http://x/").errors


def test_image_that_is_still_being_made_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with running() as origin:
        later = Reply(b'{"detail": "it is still being made"}', 504, {"Retry-After": "7"})
        made = Reply(b'{"url": "http://x/s/1.iso"}', 201)
        origin.serve("/api/v1/links", later, made)
        found = run("link", "--admin", origin.url(""), "http://x/")
    assert (found.status, found.output, pauses) == (0, b"http://x/s/1.iso\n", [7])
    assert "waiting for the image: " in found.errors


def test_image_that_would_take_an_hour_is_not_waited_for(run: Run) -> None:
    with running() as origin:
        origin.serve("/api/v1/links", Reply(status=503, headers={"Retry-After": "3600"}))
        found = run("link", "--admin", origin.url(""), "http://x/")
    assert (found.status, "status 503" in found.errors) == (1, True)


def test_all_links_are_revoked(run: Run) -> None:
    with running() as origin:
        origin.serve("/api/v1/links", Reply(b'{"links": [{"id": "a-1"}, {"id": "b/2"}]}'))
        for path in ("/api/v1/links/a-1", "/api/v1/links/b%2F2"):
            origin.serve(path, Reply(status=204))
        found = run("link", "--admin", origin.url(""), "--revoke-all")
    assert (found.status, found.output) == (0, b"2\n")
    assert [(each.method, each.target) for each in origin.requests] == [
        ("GET", "/api/v1/links"),
        ("DELETE", "/api/v1/links/a-1"),
        ("DELETE", "/api/v1/links/b%2F2"),
    ]


@pytest.mark.parametrize(("refusal", "status"), [(404, 0), (503, 1)])
def test_link_that_has_ended_meanwhile_counts_as_revoked(run: Run, refusal: int, status: int) -> None:
    with running() as origin:
        origin.serve("/api/v1/links", Reply(b'{"links": [{"id": "a"}, {"id": "b"}]}'))
        origin.serve("/api/v1/links/a", Reply(b'{"detail": "why"}', refusal))
        origin.serve("/api/v1/links/b", Reply(status=204))
        found = run("link", "--admin", origin.url(""), "--revoke-all")
    assert (found.status, found.output) == (status, b"" if status else b"2\n")
    assert ("b" in [each.target[-1] for each in origin.requests]) is (status == 0)


@pytest.mark.parametrize("arguments", [(), ("http://x/", "--revoke-all")], ids=["neither", "both"])
def test_link_is_made_or_all_are_revoked(run: Run, arguments: tuple[str, ...]) -> None:
    found = run("link", *arguments)
    assert found.status == 2
    assert "--revoke-all" in found.errors


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604800)]
)
def test_times_have_units(text: str, seconds: int) -> None:
    assert link._parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "1w", "-1", "1.5h", "d", "1d ", "٣h"])
def test_other_times_are_refused(run: Run, text: str) -> None:
    assert (
        "must be a time such as 90, 90s, 30m, 12h or 7d"
        in run("link", "http://x/", f"--expires-in={text}").errors
    )


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.1:0,[::1]:0"])
def test_unknown_port_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    monkeypatch.setenv("ADMIN_LISTEN", listen)
    assert "--admin is not given, and ADMIN_LISTEN names no port" in run("link", "http://x/").errors
