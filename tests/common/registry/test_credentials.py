from __future__ import annotations

import base64
import json

import pytest

from image_service.common.registry.credentials import CredentialStore, parse_auth_file


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def auth_file(**auths: object) -> str:
    return json.dumps({"auths": auths})


def store_of(*prefixes: str) -> CredentialStore:
    """Each prefix has itself as the user."""
    return parse_auth_file(auth_file(**{prefix: {"auth": encoded(f"{prefix}:p")} for prefix in prefixes}))


@pytest.mark.parametrize(
    ("registry", "repository", "expected"),
    [
        ("quay.io", "other/a", "quay.io"),
        ("quay.io", "team", "quay.io/team"),
        ("quay.io", "team/a", "quay.io/team"),
        ("quay.io", "team/a/b", "quay.io/team/a/b"),
        ("quay.io", "teammate/a", "quay.io"),
        ("quay.io:5000", "team/a", None),
        ("registry.local:5000", "a", "registry.local:5000"),
        ("docker.io", "library/a", "https://index.docker.io/v1/"),
        ("registry-1.docker.io", "library/a", "https://index.docker.io/v1/"),
        ("elsewhere", "a", None),
    ],
)
def test_longest_prefix_counts(registry: str, repository: str, expected: str | None) -> None:
    store = store_of(
        "quay.io", "quay.io/team", "quay.io/team/a/b", "registry.local:5000", "https://index.docker.io/v1/"
    )
    found = store.find(registry, repository)
    user = base64.b64decode(found.basic.removeprefix("Basic ")).decode() if found else None
    # A user ends at the first colon.
    assert user == (None if expected is None else f"{expected}:p")


def test_first_file_counts() -> None:
    first, second = (
        store_of("a"),
        parse_auth_file(auth_file(a={"auth": encoded("x:y")}, b={"auth": encoded("u:v")})),
    )
    merged = CredentialStore.merge([first, second])
    assert merged.find("a", "r") == first.find("a", "r")
    assert merged.find("b", "r") == second.find("b", "r")


def test_user_and_password_may_stand_alone_and_helpers_have_none() -> None:
    store = parse_auth_file(
        auth_file(a={"username": "u", "password": "p:q"}, b={"identitytoken": "t"}, c={}, d={"email": "x"})
    )
    found = store.find("a", "r")
    assert found is not None
    assert found.basic == f"Basic {encoded('u:p:q')}"
    token = store.find("b", "r")
    assert token is not None
    assert token.identity_token == "t"
    assert store.find("c", "r") is None
    assert store.find("d", "r") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("secret", "must be JSON"),
        ("[]", '"auths"'),
        ('{"auths": ["secret"]}', '"auths"'),
        ('{"credsStore": "desktop"}', "helper program"),
        (auth_file(host="secret"), "the entry for host must be an object"),
        (auth_file(host={"auth": "secret!"}), 'the entry for host must have "auth"'),
        (auth_file(host={"auth": encoded("secret")}), 'the entry for host must have "auth"'),
        (auth_file(host={"auth": ["secret"]}), "the entry for host must have strings"),
    ],
)
def test_faults_repeat_no_credential(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_auth_file(text)
    assert "secret" not in str(caught.value)


def test_credentials_are_not_shown() -> None:
    store = parse_auth_file(auth_file(host={"auth": encoded("user:secret"), "identitytoken": "secret"}))
    assert "secret" not in repr(store) + repr(store.find("host", "r"))
