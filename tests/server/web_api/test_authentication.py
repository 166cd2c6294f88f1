from __future__ import annotations

import hmac
from base64 import b64encode

import pytest
from twisted.web.http_headers import Headers

from image_service.core.errors import ImageServiceError, Unauthorized
from image_service.server.http.problem import status_of
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.sessions import Sessions

TOKEN = "t0ken"
OPEN = RequestGuard()
CLOSED = RequestGuard(lambda: TOKEN)
PUBLIC = RequestGuard(lambda: TOKEN, any_host=True, public_paths={"/health"})


def basic(credentials: bytes) -> str:
    return f"Basic {b64encode(credentials).decode()}"


def status(guard: RequestGuard, method: str = "GET", path: str = "/", /, **fields: str | list[str]) -> int:
    raw = {"Host": "127.0.0.1:8090"} | {name.replace("_", "-"): value for name, value in fields.items()}
    headers = Headers({name: [value] if isinstance(value, str) else value for name, value in raw.items()})
    try:
        guard.check_head(method, path, headers)
    except ImageServiceError as error:
        return status_of(error)
    return 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8090",
        "localhost",
        "LocalHost:80",
        "[::1]",
        "[::1]:8090",
        "192.0.2.1:1",
        "[2001:db8::1]",
    ],
)
def test_addresses_and_localhost_are_accepted(host: str) -> None:
    assert status(OPEN, Host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8090",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "127.0.0.1@evil.test",
        "evil.test#127.0.0.1",
        "localhost.",
        "[::1",
        "::1",
        "[localhost]",
        "[fe80::1%25eth0]:8090",
        "[fe80::1%eth0]",
        "",
        " localhost",
        "2130706433",
        "0x7f.1",
        "127.1",
    ],
)
def test_other_host_names_are_refused(host: str) -> None:
    assert status(OPEN, Host=host) == 421
    assert status(CLOSED, Host=host, Authorization=f"Bearer {TOKEN}") == 421


def test_any_host_name_is_accepted_with_a_token() -> None:
    assert status(PUBLIC, Host="images.example.com", Authorization=f"Bearer {TOKEN}") == 200
    assert status(PUBLIC, Host="images.example.com") == 401


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.test"]])
def test_missing_or_repeated_host_is_refused(hosts: list[str]) -> None:
    assert status(OPEN, Host=hosts) == 400


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.test",
        "null",
        "ftp://127.0.0.1:8090",
        "http://127.0.0.1",
        "http://127.0.0.1:8091",
        "http://localhost:8090",
        "",
        ["http://127.0.0.1:8090", "http://evil.test"],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_other_origins_are_refused(origin: str | list[str], method: str) -> None:
    assert status(OPEN, method, Origin=origin, Content_Type="application/json") == 403


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_own_origin_is_accepted(scheme: str) -> None:
    assert status(OPEN, Origin=f"{scheme}://127.0.0.1:8090") == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer t0kem",
        "Bearer t0ken2",
        "Bearer T0KEN",
        "Basic t0ken",
        "Basic",
        "Basic :",
        "Basic \xe9",
        basic(b"t0ken"),
        basic(b":t0kem"),
        basic(b"t0ken:"),
        basic(b"admin: t0ken"),
        basic(b"t0ken:wrong"),
        basic(b":\xff"),
        f"Bearer {basic(b':t0ken')}",
        "Digest t0ken",
        "Bearer \xe9",
        "t0ken",
        ["Bearer t0ken", "Bearer t0ken"],
    ],
)
def test_missing_or_wrong_token_is_401(authorization: str | list[str] | None) -> None:
    fields = {} if authorization is None else {"Authorization": authorization}
    assert status(CLOSED, "GET", **fields) == 401


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer t0ken",
        "bearer t0ken",
        "Bearer  t0ken",
        basic(b":t0ken"),
        basic(b"admin:t0ken"),
        basic(b"\xff:t0ken").replace("Basic", "basic"),
    ],
)
def test_correct_token_is_accepted(authorization: str) -> None:
    assert status(CLOSED, Authorization=authorization) == 200


def test_challenges_for_bearer_and_basic_are_separate_fields() -> None:
    with pytest.raises(Unauthorized) as refused:
        CLOSED.check_head("GET", "/", Headers({"Host": ["localhost"]}))
    assert refused.value.fields == (
        ("WWW-Authenticate", 'Bearer realm="image-service"'),
        ("WWW-Authenticate", 'Basic realm="image-service"'),
    )
    assert TOKEN not in refused.value.detail


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, ["Bearer", "Basic"]),
        ("*/*", ["Bearer", "Basic"]),  # wget sends a password only when it is asked for Basic
        ("text/html,*/*;q=0.8", ["Bearer"]),
        ("text/event-stream", ["Bearer"]),
        ("application/json", ["Bearer"]),
    ],
)
def test_browsers_get_no_challenge_for_which_they_prompt(accept: str | None, expected: list[str]) -> None:
    guard = RequestGuard(lambda: TOKEN, sessions=Sessions(lambda: TOKEN, lambda: 0.0))
    fields = {} if accept is None else {"Accept": [accept]}
    with pytest.raises(Unauthorized) as refused:
        guard.check_head("GET", "/", Headers({"Host": ["localhost"], **fields}))
    assert [value.partition(" ")[0] for _, value in refused.value.fields] == expected


def test_session_stands_for_the_token_unless_a_request_presents_another_one() -> None:
    sessions = Sessions(lambda: TOKEN, lambda: 0.0)
    guard = RequestGuard(lambda: TOKEN, sessions=sessions)
    cookie = sessions.begin("127.0.0.1:8090", is_secure=False).partition(";")[0]
    assert status(guard, Cookie=cookie) == 200
    assert status(guard, Cookie=cookie, Authorization="Bearer wrong") == 401
    assert status(guard, Cookie=f"{cookie}x") == 401
    assert status(CLOSED, Cookie=cookie) == 401
    assert status(guard, Cookie=cookie, Origin="http://elsewhere.example.com") == 403


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(presented: bytes, expected: bytes) -> bool:
        compared.append((presented, expected))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for authorization in ("Bearer t0ken", basic(b"admin:t0ken")):
        assert status(CLOSED, Authorization=authorization) == 401
    assert compared == [(b"t0ken", b"t0ken")] * 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/health", 200), ("/health/", 401), ("//health", 401), ("/%68ealth", 401), ("/metrics", 401)],
)
def test_public_paths_need_no_token(path: str, expected: int) -> None:
    assert status(PUBLIC, "GET", path) == expected


def test_token_may_change() -> None:
    tokens = iter(["first", "second"])
    guard = RequestGuard(lambda: next(tokens))
    assert [status(guard, Authorization="Bearer first") for _ in range(2)] == [200, 401]


def test_token_is_not_in_repr() -> None:
    assert TOKEN not in repr(CLOSED)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "application/jsonp",
        ["application/json", "text/plain"],
    ],
)
def test_content_other_than_json_is_415(method: str, content_type: str | list[str]) -> None:
    assert status(OPEN, method, Content_Type=content_type) == 415


@pytest.mark.parametrize("framing", [{"Content-Length": "1"}, {"Transfer-Encoding": "chunked"}], ids=str)
def test_content_without_a_type_is_415(framing: dict[str, str]) -> None:
    assert status(OPEN, "POST", **framing) == 415


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON ; charset=utf-8"])
def test_json_content_is_accepted(content_type: str) -> None:
    assert status(OPEN, "POST", Content_Type=content_type) == 200


def test_requests_without_content_need_no_content_type() -> None:
    assert status(OPEN, "GET") == 200
    assert status(OPEN, "DELETE") == 200
    assert status(OPEN, "POST") == 200
    assert status(OPEN, "POST", Content_Length="0") == 200


def test_streamed_content_may_be_of_any_type() -> None:
    OPEN.check_head("PUT", "/", Headers({"Host": ["localhost"], "Content-Length": ["9"]}), is_streamed=True)


@pytest.mark.parametrize("path", ["/", "/api/v1/events", "/api/v1/links", "/health"])
def test_pages_of_other_sites_embed_nothing(path: str) -> None:
    embedded = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert status(OPEN, "GET", path, **embedded) == 403
    assert status(CLOSED, "GET", path, Authorization=f"Bearer {TOKEN}", **embedded) == 403
    assert status(OPEN, "POST", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 403
    assert status(OPEN, "GET", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
    for site in ("same-origin", "same-site", "none"):
        assert status(OPEN, "GET", path, Sec_Fetch_Site=site, Sec_Fetch_Mode="cors") == 200
