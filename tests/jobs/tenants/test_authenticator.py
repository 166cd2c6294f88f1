from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.internet.defer import Deferred

from image_service.core.errors import Forbidden, TenantMissing, Unauthorized
from image_service.jobs.principal import Principal
from image_service.jobs.tenants.access_list import AccessList
from image_service.jobs.tenants.authenticator import JwtAuthenticator, OpenAuthenticator
from image_service.jobs.tenants.keys import KeySet
from image_service.settings.jobs.tenants import AccessRule
from tests.jobs.tenants.tokens import EC, ED25519, RSA, STRANGER, Issuer, key_set

if TYPE_CHECKING:
    from datetime import tzinfo

    from image_service.jobs.tenants.authenticator import Authenticator
    from image_service.jobs.tenants.keys import SigningKey

OPERATOR_TOKEN = "of-this-services-own-worker"
SSO = "https://sso.example.com"
RULES = [
    AccessRule("rh-org-id", re.compile("^4[0-9]$")),
    AccessRule("sub", re.compile("^workers$"), is_operator=True),
]


class Keys:
    """The keys of three issuers."""

    async def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        return KeySet.parse(key_set(RSA, EC, ED25519)).find(key_id, algorithm)


def authenticator(
    rules: list[AccessRule] | None = None, issuer: str | None = None, audience: str | None = None
) -> JwtAuthenticator:
    access_list = AccessList(rules, ("rh-org-id", "account_id"))
    return JwtAuthenticator(Keys(), lambda: access_list, issuer, audience, OPERATOR_TOKEN)


def authenticate(
    subject: Authenticator, token: str | None, *, scheme: str = "Bearer", is_local: bool = False
) -> Principal:
    authorization = None if token is None else f"{scheme} {token}"
    result: list[Principal] = []
    failures: list[BaseException] = []
    Deferred.fromCoroutine(subject.authenticate(authorization, is_local=is_local)).addCallbacks(
        result.append, lambda failure: failures.append(failure.value)
    )
    if failures:
        raise failures[0]
    return result[0]


@pytest.mark.parametrize("issuer", [RSA, EC, ED25519], ids=["rsa", "ec", "ed25519"])
def test_token_names_the_tenant(issuer: Issuer) -> None:
    assert authenticate(authenticator(), issuer.token()) == Principal("org-42")


def test_scheme_is_not_case_sensitive() -> None:
    assert authenticate(authenticator(), RSA.token(), scheme="bearer").tenant == "org-42"


def test_only_key_of_an_algorithm_needs_no_name() -> None:
    assert authenticate(authenticator(), EC.token(header={})).tenant == "org-42"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def unsigned_token() -> str:
    parts = ({"alg": "none", "kid": "rsa"}, {"rh-org-id": "42", "exp": time.time() + 300})
    return ".".join(encoded(json.dumps(part).encode()) for part in parts) + "."


def with_signature(token: str, signature: bytes) -> str:
    """Return a token with another signature."""
    return f"{token.rpartition('.')[0]}.{encoded(signature)}"


def hmac_token() -> str:
    """Return a token with an HMAC whose secret is a public key."""
    public = RSA.private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    payload = RSA.token().split(".")[1]
    signed = f"{encoded(json.dumps({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'}).encode())}.{payload}"
    return f"{signed}.{encoded(hmac.digest(public, signed.encode(), hashlib.sha256))}"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        pytest.param(None, "a bearer token is required", id="absent"),
        pytest.param("", "a bearer token is required", id="empty"),
        pytest.param("nonsense", "not a JSON Web Token", id="nonsense"),
        pytest.param(f"{encoded(b'[' * 9000)}.e30.", "not a JSON Web Token", id="deep"),
        pytest.param("\u00fc", "not a JSON Web Token", id="not-ascii"),
        pytest.param(unsigned_token(), "algorithm", id="unsigned"),
        pytest.param(hmac_token(), "algorithm", id="hmac"),
        pytest.param(encoded(b'{"alg": []}') + ".e30.", "algorithm", id="algorithm-is-a-list"),
        pytest.param(STRANGER.token(), "signature", id="stranger"),
        pytest.param(RSA.token(header={"kid": "other"}), "unknown key", id="unknown-key"),
        pytest.param(RSA.token(header={"kid": "ec"}), "unknown key", id="key-of-another-type"),
        *(
            pytest.param(
                STRANGER.token(header={"kid": "rsa", **members}), "signature", id=next(iter(members))
            )
            for members in (
                {"jku": "http://127.0.0.1:1/keys.json"},
                {"x5u": "http://127.0.0.1:1/chain.pem"},
                {"x5c": [encoded(b"certificate")]},
                {"jwk": json.loads(key_set(STRANGER))["keys"][0]},
            )
        ),
        *(
            pytest.param(RSA.token(header={"kid": key_id}), "unknown key", id=f"key-id-{number}")
            for number, key_id in enumerate(["../../rsa", "rsa' OR '1'='1", "rsa\0", "r" * 5000])
        ),
        *(
            pytest.param(with_signature(issuer.token(), bytes(size)), "signature", id=f"zeros-{number}")
            for number, (issuer, size) in enumerate([(RSA, 256), (EC, 64), (ED25519, 64), (EC, 0)])
        ),
        pytest.param(
            RSA.token(header={"kid": "rsa", "crit": ["x"], "x": 1}), "not a JSON Web Token", id="crit"
        ),
        pytest.param(RSA.token(iss=SSO, aud="images", exp=time.time() - 60), "expired", id="expired"),
        pytest.param(RSA.token(iss=SSO, aud="images", exp=str(2**33)), "exp", id="exp-is-text"),
        pytest.param(RSA.token(iss=SSO, aud="images", exp=10**30), "exp", id="exp-is-too-late"),
        pytest.param(RSA.token(iss=SSO, aud="images", exp=True), "exp", id="exp-is-true"),
        pytest.param(RSA.token(iss=SSO, aud="images", nbf="1"), "nbf", id="nbf-is-text"),
        pytest.param(RSA.token(iss=SSO, aud="images", nbf=-1), "nbf", id="nbf-is-negative"),
        pytest.param(RSA.token(iss=SSO, aud="images", iat="1"), "malformed|iat", id="iat-is-text"),
        pytest.param(RSA.token(exp=None), "no exp", id="eternal"),
        pytest.param(RSA.token(iss=SSO, aud="images", nbf=time.time() + 43200), "not valid yet", id="early"),
        pytest.param(RSA.token(iss="https://sso.example.org", aud="images"), "another issuer", id="issuer"),
        pytest.param(RSA.token(aud="images"), "no iss", id="no-issuer"),
        pytest.param(RSA.token(iss=SSO, aud=["others"]), "another audience", id="audience"),
        pytest.param(RSA.token(iss=SSO), "no aud", id="no-audience"),
    ],
)
def test_token_is_refused(token: str | None, reason: str) -> None:
    with pytest.raises(Unauthorized, match=reason) as caught:
        authenticate(authenticator(issuer=SSO, audience="images"), token)
    assert dict(caught.value.fields)["WWW-Authenticate"].startswith("Bearer")
    assert not token or token not in caught.value.detail


def test_token_of_the_issuer_for_the_audience_is_accepted() -> None:
    token = RSA.token(iss=SSO, aud=["others", "images"])
    assert authenticate(authenticator(issuer=SSO, audience="images"), token).tenant == "org-42"


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [
        ({"rh-org-id": "7", "account_id": "8"}, "org-7"),
        ({"rh-org-id": 7, "account_id": "8"}, "org-8"),
        ({"rh-org-id": "", "account_id": "8"}, "org-8"),
    ],
    ids=["first", "number", "empty"],
)
def test_tenant_is_the_first_claim_that_is_a_string(claims: dict[str, object], tenant: str) -> None:
    assert authenticate(authenticator(), RSA.token(**claims)).tenant == tenant  # type: ignore[arg-type]


def without_tenant(**claims: object) -> str:
    return RSA.token(header=None, **{"rh-org-id": None, **claims})


def test_token_without_tenant_is_refused() -> None:
    with pytest.raises(TenantMissing, match="rh-org-id or account_id"):
        authenticate(authenticator(), without_tenant())


def test_one_rule_is_enough() -> None:
    assert authenticate(authenticator(RULES), RSA.token()) == Principal("org-42")


@pytest.mark.parametrize(
    "value", ["5", None, 42, "42\n", "42\0"], ids=["other", "absent", "number", "line-end", "zero"]
)
def test_others_are_forbidden(value: object) -> None:
    with pytest.raises(Forbidden):
        authenticate(authenticator(RULES), without_tenant(**{"rh-org-id": value}))


@pytest.mark.parametrize("value", ["142", "421", "4", "42 "])
def test_rule_matches_the_whole_value(value: str) -> None:
    subject = authenticator([AccessRule("rh-org-id", re.compile("4[0-9]"))])
    assert authenticate(subject, without_tenant(**{"rh-org-id": "42"})) == Principal("org-42")
    with pytest.raises(Forbidden):
        authenticate(subject, without_tenant(**{"rh-org-id": value}))


def test_operator_needs_no_tenant() -> None:
    subject = authenticator(RULES)
    assert authenticate(subject, RSA.token(sub="workers")) == Principal("org-42", is_operator=True)
    assert authenticate(subject, without_tenant(sub="workers")) == Principal("", is_operator=True)


def test_unix_socket_is_the_default_tenant() -> None:
    assert authenticate(authenticator(RULES), None, is_local=True) == Principal("")
    assert authenticate(authenticator(RULES), RSA.token(sub="workers"), is_local=True) == Principal("")


@pytest.mark.parametrize("is_local", [False, True], ids=["tcp", "unix"])
def test_worker_of_this_service_is_an_operator(*, is_local: bool) -> None:
    found = authenticate(authenticator(RULES), OPERATOR_TOKEN, is_local=is_local)
    assert found == Principal("", is_operator=True, is_built_in=is_local)


@pytest.mark.parametrize("token", [None, "another", ""])
def test_without_jwt_everyone_is_the_operator_but_not_the_worker_of_this_service(token: str | None) -> None:
    subject = OpenAuthenticator(OPERATOR_TOKEN)
    assert authenticate(subject, token) == Principal("", is_operator=True)
    assert authenticate(subject, token, is_local=True) == Principal("", is_operator=True)
    assert authenticate(subject, OPERATOR_TOKEN) == Principal("", is_operator=True)
    found = authenticate(subject, OPERATOR_TOKEN, is_local=True)
    assert found == Principal("", is_operator=True, is_built_in=True)


@attrs.frozen
class OtherClock:
    """In place of PyJWT's `datetime`."""

    seconds: float

    def now(self, tz: tzinfo) -> datetime:
        return datetime.fromtimestamp(self.seconds, tz)


class ChangingKeys(Keys):
    """Keys that a test replaces."""

    def __init__(self) -> None:
        self.keys = KeySet.parse(key_set(RSA))

    async def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        return self.keys.find(key_id, algorithm)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens whose signatures were verified."""
    tokens: list[str] = []
    decode = jwt.decode

    def recorded(token: str, *arguments: Any, **options: Any) -> Any:
        tokens.append(token)
        return decode(token, *arguments, **options)

    monkeypatch.setattr(jwt, "decode", recorded)
    return tokens


def test_signature_is_verified_once(verified: list[str]) -> None:
    keys, rules = ChangingKeys(), [[AccessRule("rh-org-id", re.compile("^4[0-9]$"))]]
    subject = JwtAuthenticator(keys, lambda: AccessList(rules[0], ("rh-org-id",)), None, None, OPERATOR_TOKEN)
    one, other = RSA.token(), RSA.token(sub="another")
    for token in (one, other, one, one, other):
        assert authenticate(subject, token) == Principal("org-42")
    assert verified == [one, other]
    rules[0] = [AccessRule("rh-org-id", re.compile("^5[0-9]$"))]
    with pytest.raises(Forbidden):
        authenticate(subject, one)


def test_token_is_verified_again_after_a_change_of_the_keys(verified: list[str]) -> None:
    keys = ChangingKeys()
    subject = JwtAuthenticator(keys, lambda: AccessList(None, ("rh-org-id",)), None, None, OPERATOR_TOKEN)
    token = RSA.token()
    assert authenticate(subject, token) == Principal("org-42")
    keys.keys = KeySet.parse(key_set(RSA))
    assert authenticate(subject, token) == Principal("org-42")
    assert verified == [token, token]
    keys.keys = KeySet.parse(key_set(EC))
    with pytest.raises(Unauthorized, match="unknown key"):
        authenticate(subject, token)


@pytest.mark.parametrize(
    ("claims", "seconds", "reason"),
    [
        ({"exp": 100}, 111, "has expired"),
        ({"exp": 1000, "nbf": 0}, -11, "not valid yet"),
        ({"exp": 1000, "iat": 0}, -11, "not valid yet"),
    ],
    ids=["exp", "nbf", "iat"],
)
def test_times_of_a_known_token_are_compared_with_each_request(
    claims: dict[str, int], seconds: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    times: dict[str, Any] = {name: now + value for name, value in claims.items()}
    subject, token = authenticator(), RSA.token(**times)
    assert authenticate(subject, token) == Principal("org-42")
    monkeypatch.setattr(time, "time", lambda: now + seconds)
    monkeypatch.setattr("jwt.api_jwt.datetime", OtherClock(now + seconds))
    with pytest.raises(Unauthorized, match=reason):
        authenticate(subject, token)
