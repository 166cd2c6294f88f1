"""Settings of signed statements: faults are told at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from image_service.core.errors import ConfigurationError
from image_service.core.provenance.dsse import load_signing_key, load_verifying_keys, open_bundle, sign_bundle
from image_service.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

REQUIRED = {"IMAGE_SERVICE_BASE_URL": "http://images.test", "DATA_DIR": "/tmp"}
OLD, NEW = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
PUBLIC = [
    key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in (OLD, NEW)
]


def pem(key: PrivateKeyTypes, password: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def faults_of(**variables: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment({**REQUIRED, **variables}, standalone=True)
    return caught.value.detail


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"secret words", "cannot be used: the signing key is not an ECDSA P-256 or an Ed25519 key"),
        (pem(NEW, b"secret words"), "without a passphrase"),
        (pem(rsa.generate_private_key(65537, 2048)), "key is not an ECDSA P-256 or an Ed25519 key"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "key is not an ECDSA P-256 or an Ed25519 key"),
        (PUBLIC[0], "key is not an ECDSA P-256 or an Ed25519 key"),
    ],
)
def test_a_key_that_cannot_sign_is_a_fault(content: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.write_bytes(content)
    told = faults_of(SIGNING_KEY_FILE=str(path), LISTEN_PORT="x")
    assert "SIGNING_KEY_FILE=" in told
    assert fault in told
    assert "LISTEN_PORT" in told, "all faults are told at once"
    assert "secret" not in told


def test_without_a_key_nothing_reads_one() -> None:
    settings = Settings.from_environment(REQUIRED, standalone=True).signing
    assert (settings.files, settings.key_reader()) == ((), None)


def test_an_absent_key_is_a_fault(tmp_path: Path) -> None:
    assert "must be a readable file" in faults_of(SIGNING_KEY_FILE=str(tmp_path / "absent"))


def test_retired_keys_are_public_and_need_a_current_one(tmp_path: Path) -> None:
    key, retired = tmp_path / "signing.key", tmp_path / "retired.pem"
    key.write_bytes(pem(NEW))
    retired.write_bytes(pem(OLD))
    assert "has no public key" in faults_of(SIGNING_KEY_FILE=str(key), SIGNING_RETIRED_KEYS=str(retired))
    retired.write_bytes(PUBLIC[0])
    assert "without SIGNING_KEY_FILE" in faults_of(SIGNING_RETIRED_KEYS=str(retired))
    found = Settings.from_environment(
        {**REQUIRED, "SIGNING_KEY_FILE": str(key), "SIGNING_RETIRED_KEYS": str(retired)}, standalone=True
    )
    assert found.signing.files == (key, retired)
    read_keys = found.signing.key_reader()
    assert read_keys is not None
    assert read_keys().pem == PUBLIC[1] + PUBLIC[0]
    key.write_bytes(pem(OLD))
    assert read_keys().pem == PUBLIC[0], "a key that is listed twice is one"
    retired.unlink()
    with pytest.raises(ConfigurationError, match=r"retired\.pem"):
        read_keys()


def test_a_bundle_of_a_retired_key_stays_valid() -> None:
    bundle = sign_bundle(load_signing_key(pem(OLD)), b"{}")
    listed = load_verifying_keys(PUBLIC[1] + b"\n# retired in 2026\n" + PUBLIC[0])
    assert [key.pem for key in listed] == [PUBLIC[1], PUBLIC[0]]
    assert open_bundle(bundle, listed) == b"{}"
