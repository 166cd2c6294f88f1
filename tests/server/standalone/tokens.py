"""JSON web tokens as assisted-service's local authentication makes them: ES256, randomized."""

from __future__ import annotations

import base64
import json

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

_COORDINATE_BYTES = 32  # RFC 7518 section 3.4: R and S, each as 32 bytes, big-endian


class TokenSigner:
    """Signs tokens with a new key."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def sign(self, infra_env_id: str) -> str:
        """Return a token with the claim ``infra_env_id``, unlike any before: signatures are randomized."""
        head = _encode(json.dumps({"alg": "ES256", "typ": "JWT"}).encode())
        claims = _encode(json.dumps({"infra_env_id": infra_env_id}).encode())
        signed = head + b"." + claims
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(_COORDINATE_BYTES, "big") + s.to_bytes(_COORDINATE_BYTES, "big")
        return (signed + b"." + _encode(signature)).decode()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
