from __future__ import annotations

import base64
import json
import subprocess
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
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import ConfigurationError, FormatError, SignatureInvalid
from image_service.core.provenance.dsse import (
    BundleSigner,
    encode_pre_authentication,
    load_signing_key,
    load_verifying_key,
    open_bundle,
    sign_bundle,
)
from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
P256, OTHER_P256 = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
ED25519 = ed25519.Ed25519PrivateKey.generate()


def pem(key: PrivateKeyTypes, password: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


KEYS = [load_signing_key(pem(key)) for key in (P256, ED25519)]
STRANGER = load_signing_key(pem(OTHER_P256)).public


def test_encoding_is_that_of_the_specification() -> None:
    encoded = encode_pre_authentication("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


@pytest.mark.parametrize("index", [0, 1])
def test_openssl_accepts_the_signature(index: int, tmp_path: Path) -> None:
    key, envelope = KEYS[index], json.loads(sign_bundle(KEYS[index], PAYLOAD))["dsseEnvelope"]
    public, message, signature = (tmp_path / name for name in ("public.pem", "message", "signature"))
    public.write_bytes(key.public.pem)
    payload = base64.b64decode(envelope["payload"])
    message.write_bytes(b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload))
    signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    files: list[str | Path] = ["-inkey", public, "-sigfile", signature, "-in", message]
    digest = ["-digest", "sha256"] if index == 0 else []
    command = [needs_client("openssl"), "pkeyutl", "-verify", "-rawin", "-pubin", *files, *digest]
    assert b"Verified Successfully" in subprocess.run(command, check=True, capture_output=True).stdout
    message.write_bytes(message.read_bytes() + b" ")
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1


@given(st.binary(max_size=300), st.sampled_from(KEYS))
def test_a_bundle_opens_and_is_the_same_each_time(payload: bytes, signer: BundleSigner) -> None:
    bundle = sign_bundle(signer, payload)
    assert bundle == sign_bundle(signer, payload)
    assert open_bundle(bundle, [STRANGER, load_verifying_key(signer.public.pem)]) == payload


def test_a_bundle_has_the_members_of_version_0_3() -> None:
    assert json.loads(sign_bundle(KEYS[0], PAYLOAD)) == {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": KEYS[0].public.hint}},
        "dsseEnvelope": {
            "payload": base64.b64encode(PAYLOAD).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [
                {
                    "keyid": "",
                    "sig": json.loads(sign_bundle(KEYS[0], PAYLOAD))["dsseEnvelope"]["signatures"][0]["sig"],
                }
            ],
        },
    }


def test_an_envelope_opens_without_its_bundle() -> None:
    envelope = json.dumps(json.loads(sign_bundle(KEYS[1], PAYLOAD))["dsseEnvelope"]).encode()
    assert open_bundle(envelope, [KEYS[1].public]) == PAYLOAD


@given(st.data(), st.sampled_from([0, 1]), st.sampled_from(["payload", "sig"]))
def test_a_flipped_bit_is_found(data: st.DataObject, index: int, member: str) -> None:
    bundle = json.loads(sign_bundle(KEYS[index], PAYLOAD))
    holder = bundle["dsseEnvelope"] if member == "payload" else bundle["dsseEnvelope"]["signatures"][0]
    content = bytearray(base64.b64decode(holder[member]))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    holder[member] = base64.b64encode(content).decode()
    with pytest.raises(SignatureInvalid):
        open_bundle(json.dumps(bundle).encode(), [KEYS[index].public])


def test_another_key_or_none_opens_nothing() -> None:
    bundle = sign_bundle(KEYS[0], PAYLOAD)
    for keys in ([], [STRANGER], [KEYS[1].public]):
        with pytest.raises(SignatureInvalid):
            open_bundle(bundle, keys)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"dsseEnvelope": 1}',
        b"[" * 100_000,
        b'{"payloadType":"application/vnd.in-toto+json","payload":"*","signatures":[]}',
        b'{"payloadType":"application/vnd.in-toto+json","payload":"","signatures":[{"sig":1}]}',
    ],
)
def test_what_is_not_an_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="not a Sigstore bundle"):
        open_bundle(data, [KEYS[0].public])


def test_a_payload_of_another_type_is_refused() -> None:
    with pytest.raises(FormatError, match="not of the type application/vnd"):
        open_bundle(sign_bundle(KEYS[0], PAYLOAD, "text/plain"), [KEYS[0].public])


def test_other_keys_are_refused_without_their_text() -> None:
    rsa_key = rsa.generate_private_key(65537, 2048)
    p384 = ec.generate_private_key(ec.SECP384R1())
    for data in (pem(rsa_key), pem(p384), pem(P256, b"secret"), b"SECRET", b""):
        with pytest.raises(ConfigurationError, match="not an ECDSA P-256 or an Ed25519 key") as caught:
            load_signing_key(data)
        assert "SECRET" not in caught.value.detail
    for public in (rsa_key.public_key(), p384.public_key()):
        with pytest.raises(ConfigurationError):
            load_verifying_key(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ConfigurationError):
        load_verifying_key(pem(P256))
