from __future__ import annotations

import base64
import json

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.server.standalone.tokens import TokenSigner

ID = "5a3b1e00-0000-4000-8000-000000000009"


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_token_is_a_signed_jwt_for_the_infra_env() -> None:
    signer = TokenSigner()
    head, claims, signature = signer.sign(ID).split(".")
    assert json.loads(decode(head)) == {"alg": "ES256", "typ": "JWT"}
    assert json.loads(decode(claims)) == {"infra_env_id": ID}
    raw = decode(signature)
    assert len(raw) == 64
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    signer._key.public_key().verify(
        encode_dss_signature(r, s), f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256())
    )


def test_tokens_are_unique() -> None:
    signer = TokenSigner()
    assert len({signer.sign(ID) for _ in range(50)}) == 50
