"""Keys and tokens for tests."""

from __future__ import annotations

import json
import time
from typing import Any

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

_KINDS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


@attrs.frozen
class Issuer:
    """Signs tokens with a private key."""

    kid: str
    private_key: Any
    algorithm: str

    def jwk(self, **members: object) -> dict[str, object]:
        """Return the public key as a member of a key set."""
        document = json.loads(_KINDS[self.algorithm].to_jwk(self.private_key.public_key()))
        return {**document, "kid": self.kid, **members}

    def token(self, *, header: dict[str, Any] | None = None, **claims: object) -> str:
        """Return a token of these claims, valid for a day unless they say something else."""
        claims = {"rh-org-id": "42", "exp": time.time() + 86400, **claims}
        return jwt.encode(
            {name: value for name, value in claims.items() if value is not None},
            self.private_key,
            self.algorithm,
            headers={"kid": self.kid} if header is None else header,
        )


RSA = Issuer("rsa", rsa.generate_private_key(65537, 2048), "RS256")
EC = Issuer("ec", ec.generate_private_key(ec.SECP256R1()), "ES256")
ED25519 = Issuer("ed", ed25519.Ed25519PrivateKey.generate(), "EdDSA")
STRANGER = Issuer("rsa", rsa.generate_private_key(65537, 2048), "RS256")  # names the key of another


def key_set(*issuers: Issuer) -> bytes:
    """Return the document of these issuers' keys."""
    return json.dumps({"keys": [issuer.jwk() for issuer in issuers]}).encode()
