from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.tenants.keys import KeySet
from tests.jobs.tenants.tokens import EC, ED25519, RSA

if TYPE_CHECKING:
    from tests.jobs.tenants.tokens import Issuer

SYMMETRIC = {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa", "alg": "HS256"}


def parse(*documents: object) -> KeySet:
    return KeySet.parse(json.dumps({"keys": documents}))


@pytest.mark.parametrize(
    ("issuer", "algorithms"),
    [
        (RSA, {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (EC, {"ES256"}),
        (ED25519, {"EdDSA"}),
    ],
    ids=["rsa", "ec", "ed25519"],
)
def test_type_of_a_key_decides_its_algorithms(issuer: Issuer, algorithms: set[str]) -> None:
    (key,) = parse(issuer.jwk()).keys
    assert key.algorithms == algorithms


def test_key_set_may_name_the_only_algorithm() -> None:
    keys = parse(RSA.jwk(alg="PS256"))
    assert keys.find("rsa", "PS256") is not None
    assert keys.find("rsa", "RS256") is None


@pytest.mark.parametrize(
    "document",
    [
        SYMMETRIC,
        RSA.jwk(use="enc"),
        RSA.jwk(alg="HS256"),
        RSA.jwk(n="!"),
        {"kty": "RSA"},
        {"kty": "EC", "crv": "P-256", "x": 1},
        "text",
    ],
    ids=["symmetric", "encryption", "algorithm", "damaged", "incomplete", "wrong-type", "no-object"],
)
def test_other_keys_are_left_out(document: object) -> None:
    assert [key.id for key in parse(document, EC.jwk()).keys] == ["ec"]
    with pytest.raises(ValueError, match="must hold an RSA, EC"):
        parse(document)


def test_private_members_are_ignored() -> None:
    (key,) = parse(RSA.jwk(d="AQAB", p="AQ", q="AQ")).keys
    assert not hasattr(key.key, "private_numbers")


def test_token_without_key_id_needs_a_single_key() -> None:
    one, other = RSA.jwk(), RSA.jwk(kid="second")
    assert parse(one).find(None, "RS256") is not None
    assert parse(one, other).find(None, "RS256") is None
    assert parse(one, other).find("second", "RS256") is not None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"keys": {}}', "[" * 100_000], ids=["empty", "list", "map", "deep"]
)
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="JSON Web Key Set"):
        KeySet.parse(text)
