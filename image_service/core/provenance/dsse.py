"""Signatures: DSSE envelopes in Sigstore bundles v0.3, by a local key and without a transparency log.

The key is ECDSA P-256, whose signatures are those of RFC 6979, or Ed25519: either signs the same payload with
the same bytes on every replica.
"""

from __future__ import annotations

import base64
import binascii
import json
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as EcPrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as EcPublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from image_service.core.errors import ConfigurationError, FormatError, SignatureInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

IN_TOTO = "application/vnd.in-toto+json"
"""The type of a payload that is an in-toto statement."""

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""The type of a bundle."""

_PEM_END = b"-----END PUBLIC KEY-----"
_KINDS = "an ECDSA P-256 or an Ed25519 key"

PublicKey: TypeAlias = EcPublicKey | Ed25519PublicKey


@attrs.frozen
class BundleVerifier:
    """A public key."""

    key: PublicKey = attrs.field(repr=False)
    hint: str  # base64 of the SHA-256 of its SubjectPublicKeyInfo, as cosign names keys

    def accepts(self, signature: bytes, message: bytes) -> bool:
        """Return True if the key's owner has signed the message."""
        try:
            if isinstance(self.key, EcPublicKey):
                self.key.verify(signature, message, ECDSA(SHA256()))
            else:
                self.key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    @property
    def pem(self) -> bytes:
        """The key as PEM."""
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@attrs.frozen
class BundleSigner:
    """A private key, in memory or in a token, and its public one.

    Args:
        sign: returns the signature of a message; of ECDSA as DER.
    """

    sign: Callable[[bytes], bytes] = attrs.field(repr=False)
    public: BundleVerifier


@attrs.frozen
class SigningKeys:
    """The key that signs, and the list of the public keys that verify.

    Args:
        retired: those of keys that have signed before; the current one may be among them.
    """

    signer: BundleSigner
    retired: tuple[BundleVerifier, ...] = ()

    @property
    def pem(self) -> bytes:
        """The public keys as PEM, the current one first."""
        keys = (self.signer.public, *self.retired)
        return b"".join(dict.fromkeys(key.pem for key in keys))


def load_signing_key(pem: bytes) -> BundleSigner:
    """Return a private key that is not encrypted. It signs a message with the same bytes each time.

    Raises:
        ConfigurationError: it is not one that signs here; never contains any of it.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(f"the signing key is not {_KINDS} in PEM without a passphrase") from None
    if not isinstance(key, EcPrivateKey | Ed25519PrivateKey):
        raise ConfigurationError(f"the signing key is not {_KINDS} in PEM")
    public = make_verifier(key.public_key())
    sign: Callable[[bytes], bytes]
    if isinstance(key, EcPrivateKey):
        sign = partial(key.sign, signature_algorithm=ECDSA(SHA256(), deterministic_signing=True))
    else:
        sign = key.sign
    try:
        sign(b"")
    except UnsupportedAlgorithm:
        raise ConfigurationError(
            "the signing key is of ECDSA, for whose signatures of RFC 6979 this machine's OpenSSL is too old"
            " (3.2 or later); use Ed25519"
        ) from None
    return BundleSigner(sign, public)


def load_verifying_keys(pem: bytes) -> tuple[BundleVerifier, ...]:
    """Return the public keys, at least one, of a file; ConfigurationError if one does not verify here."""
    keys = tuple(load_verifying_key(each + _PEM_END) for each in pem.split(_PEM_END)[:-1])
    if not keys:
        raise ConfigurationError(f"the file has no public key: it must have {_KINDS} in PEM")
    return keys


def load_verifying_key(pem: bytes) -> BundleVerifier:
    """Return a public key; ConfigurationError if it is not one that verifies here."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"the public key is not {_KINDS} in PEM") from None
    return make_verifier(key)


def make_verifier(key: object) -> BundleVerifier:
    """Return what verifies with a public key; ConfigurationError if it is of another kind."""
    if not isinstance(key, EcPublicKey | Ed25519PublicKey) or (
        isinstance(key, EcPublicKey) and not isinstance(key.curve, SECP256R1)
    ):
        raise ConfigurationError(f"the key is not {_KINDS}")
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return BundleVerifier(key, base64.b64encode(sha256(encoded).digest()).decode())


def encode_pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: the type and the payload with their lengths (DSSE's PAE)."""
    name = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def sign_bundle(key: BundleSigner, payload: bytes, payload_type: str = IN_TOTO) -> bytes:
    """Return a bundle with a signed payload: JSON, the same bytes each time."""
    signature = key.sign(encode_pre_authentication(payload_type, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        # Go's verifiers skip a signature whose keyid is not their own name of the key; cosign's is empty too.
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
    }
    bundle = {
        "dsseEnvelope": envelope,
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": key.public.hint}},
    }
    return json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()


def open_bundle(data: bytes, keys: Iterable[BundleVerifier], payload_type: str = IN_TOTO) -> bytes:
    """Return the payload of a bundle, or of a bare envelope, that one of the keys has signed.

    Names of keys in it are not trusted: each key is tried.

    Raises:
        FormatError: it is neither, or of another type.
        SignatureInvalid: none of the keys has signed it.
    """
    payload, signatures = _read_envelope(data, payload_type)
    message = encode_pre_authentication(payload_type, payload)
    if not any(key.accepts(signature, message) for key in keys for signature in signatures):
        raise SignatureInvalid("none of the keys has signed this statement")
    return payload


def read_unverified(data: bytes, payload_type: str = IN_TOTO) -> bytes:
    """Return the payload of a bundle, whoever has signed it; FormatError as `open_bundle`."""
    return _read_envelope(data, payload_type)[0]


def _read_envelope(data: bytes, payload_type: str) -> tuple[bytes, list[bytes]]:
    try:
        members = json.loads(data)
        envelope = members.get("dsseEnvelope", members)
        found = envelope["payloadType"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise FormatError("not a Sigstore bundle with a DSSE envelope, nor such an envelope") from None
    if found != payload_type:
        raise FormatError(f"the signed payload is not of the type {payload_type}")
    return payload, signatures
