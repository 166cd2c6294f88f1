"""Credentials and readers: what caches know of them."""

from __future__ import annotations

import hashlib

import pytest

from image_service.core.images.reference import (
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    Reader,
    digest_of,
)

SECRET = "s3cr3t"
REF = ImageRef("a6c0ff12-3456-4789-8abc-def012345678", "4.20", "x86_64", Kind.FULL_ISO)
OTHERS = [
    Credentials(CredentialScheme.API_KEY, "other"),
    Credentials(CredentialScheme.IMAGE_TOKEN, SECRET),
    Credentials(CredentialScheme.AUTHORIZATION, SECRET),
]


def test_equal_credentials_have_equal_digests() -> None:
    one, same = (Credentials(CredentialScheme.API_KEY, SECRET) for _ in range(2))
    assert (one, one.digest, hash(one)) == (same, same.digest, hash(same))


@pytest.mark.parametrize("other", OTHERS)
def test_scheme_and_secret_distinguish_credentials(other: Credentials) -> None:
    credentials = Credentials(CredentialScheme.API_KEY, SECRET)
    assert credentials != other
    assert credentials.digest != other.digest


def test_digest_is_salted_and_shows_nothing_of_the_secret() -> None:
    credentials = Credentials(CredentialScheme.API_KEY, SECRET)
    assert credentials.digest != hashlib.sha256(SECRET.encode()).digest()
    assert SECRET.encode() not in credentials.digest
    assert SECRET not in repr(credentials)


def test_request_without_credentials_has_no_digest() -> None:
    assert digest_of(None) is None


def test_reader_key_has_the_digest_instead_of_the_secret() -> None:
    credentials = Credentials(CredentialScheme.API_KEY, SECRET)
    assert Reader("192.0.2.1", credentials, REF).key == ("192.0.2.1", credentials.digest, REF, None)
    assert Reader("192.0.2.1", None, REF).key == ("192.0.2.1", None, REF, None)
