"""Sessions of browsers: when they begin and end, and their cookies."""

from __future__ import annotations

import re

import attrs
import pytest

from image_service.server.web_api.sessions import MAX_SESSIONS, SESSION_SECONDS, Sessions

HOST = "127.0.0.1:8081"


@attrs.define
class Site:
    """Sessions of a listener, with its token and a clock that the test sets."""

    token: str = "first-token"
    now: float = 1000.0
    sessions: Sessions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sessions = Sessions(lambda: self.token, lambda: self.now)

    def begin(self, host: str = HOST) -> str:
        """Begin a session; return the field `Cookie` that a browser sends from now on."""
        return self.sessions.begin(host, is_secure=False).partition(";")[0]

    def is_open(self, cookie: str, host: str = HOST) -> bool:
        return self.sessions.seconds_left(host, cookie) is not None


def test_session_lasts_as_long_as_it_says() -> None:
    site = Site()
    cookie = site.begin()
    assert site.sessions.seconds_left(HOST, cookie) == SESSION_SECONDS
    site.now += SESSION_SECONDS - 1
    assert site.is_open(cookie)
    site.now += 1
    assert not site.is_open(cookie)


def test_session_ends_with_its_token() -> None:
    site = Site()
    cookie = site.begin()
    site.token = "second-token"
    assert not site.is_open(cookie)
    site.token = "first-token"
    assert site.is_open(cookie)


def test_session_that_was_ended_cannot_be_used_again() -> None:
    site = Site()
    cookie, other = site.begin(), site.begin()
    removed = site.sessions.end(HOST, cookie)
    assert re.fullmatch("image-service-8081=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", removed)
    assert not site.is_open(cookie)
    assert site.is_open(other)
    site.sessions.end(HOST, "")


@pytest.mark.parametrize("is_secure", [False, True])
def test_no_script_reads_a_cookie_and_no_other_site_has_it_sent(is_secure: bool) -> None:  # noqa: FBT001 - pytest's
    field = Site().sessions.begin(HOST, is_secure=is_secure)
    value = "[A-Za-z0-9_-]{43}"
    attributes = "; Path=/; HttpOnly; SameSite=Strict" + "; Secure" * is_secure
    assert re.fullmatch(f"image-service-8081={value}{attributes}", field)
    assert "token" not in field


def test_listeners_of_one_host_have_cookies_of_their_own() -> None:
    one, other = Site(), Site()
    cookies = f"theme=dark; {one.begin()}; {other.begin('127.0.0.1:8082')}"
    assert one.is_open(cookies)
    assert other.is_open(cookies, "127.0.0.1:8082")
    assert not one.is_open(cookies, "127.0.0.1:8082")
    assert site_name("[::1]") == site_name("images.example.com") == "image-service"
    assert site_name("[::1]:8081") == "image-service-8081"


def site_name(host: str) -> str:
    return Site().begin(host).partition("=")[0]


def test_latest_sessions_are_kept() -> None:
    site = Site()
    first = site.begin()
    second = site.begin()
    for _ in range(MAX_SESSIONS - 1):
        assert site.is_open(first)
        site.begin()
    assert not site.is_open(second)
    assert site.is_open(first)


@pytest.mark.parametrize(
    "cookies", ["", "image-service-8081", "image-service-8081=", "image-service-8081=\xff"]
)
def test_cookies_without_a_session_are_none(cookies: str) -> None:
    assert not Site().is_open(cookies)
