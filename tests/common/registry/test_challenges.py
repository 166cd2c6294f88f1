from __future__ import annotations

import pytest

from image_service.common.registry.challenges import Challenge, parse_challenges, parse_token, token_url
from image_service.core.errors import FormatError


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("", []),
        ("Basic", [("basic", {})]),
        ('Basic realm="a, b"', [("basic", {"realm": "a, b"})]),
        (
            'Bearer realm="https://auth/token",service="quay.io",scope="repository:a:pull,push"',
            [
                (
                    "bearer",
                    {"realm": "https://auth/token", "service": "quay.io", "scope": "repository:a:pull,push"},
                )
            ],
        ),
        ('bearer Realm=plain , error="x \\" y"', [("bearer", {"realm": "plain", "error": 'x " y'})]),
        (
            'Basic realm="a", Bearer realm="https://b",service=c',
            [("basic", {"realm": "a"}), ("bearer", {"realm": "https://b", "service": "c"})],
        ),
        ('Bearer realm="open', [("bearer", {})]),
    ],
)
def test_challenges(field: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    found = [(each.scheme, dict(each.parameters)) for each in parse_challenges(field)]
    assert found[: len(expected)] == expected


def test_url_of_a_token() -> None:
    challenge = Challenge("bearer", {"realm": "https://auth:8443/token?x=1", "service": "a b"})
    assert (
        token_url(challenge, "repository:r:pull", is_plain=False)
        == "https://auth:8443/token?x=1&service=a+b&scope=repository%3Ar%3Apull"
    )


@pytest.mark.parametrize(
    "realm", ["", "auth", "ftp://auth/", "http://auth/", "https://user@auth/", "https:///", "http://[::1/"]
)
def test_realms_that_are_refused(realm: str) -> None:
    with pytest.raises(FormatError):
        token_url(Challenge("bearer", {"realm": realm}), "s", is_plain=False)


def test_plain_registry_may_have_a_plain_token_server() -> None:
    challenge = Challenge("bearer", {"realm": "http://auth/"})
    assert token_url(challenge, "s", is_plain=True).startswith("http://auth/?")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"token": "t"}', ("t", 60)),
        (b'{"access_token": "t", "expires_in": 300}', ("t", 300)),
        (b'{"token": "t", "access_token": "u", "expires_in": -5}', ("t", 1)),
        (b'{"token": "t", "expires_in": 1e99}', ("t", 86400)),
        (b'{"token": "t", "expires_in": "soon"}', ("t", 60)),
    ],
)
def test_tokens(content: bytes, expected: tuple[str, float]) -> None:
    token = parse_token(content)
    assert (token.text, token.seconds) == expected
    assert "'t'" not in repr(token)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"token": ""}', b'{"token": 5}', b'{"token": "a\\nb"}']
)
def test_no_token(content: bytes) -> None:
    with pytest.raises(FormatError, match="sent no token"):
        parse_token(content)
