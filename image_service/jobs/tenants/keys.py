"""Public keys that sign tokens, and the algorithms that each may be used with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from jwt import PyJWK, PyJWTError

from image_service.settings.jobs.tenants import key_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_CURVE = {
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "P-521": frozenset({"ES512"}),
    "Ed25519": frozenset({"EdDSA"}),
}
ALGORITHMS = _RSA.union(*_BY_CURVE.values())
"""Those of public keys: a token with `none` or an algorithm of symmetric keys is never verified."""

_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")


@attrs.frozen
class SigningKey:
    """A public key.

    Args:
        id: ``kid``; None: it has none.
        algorithms: those that fit its type, or the one that its issuer has named.
        key: an object of ``cryptography``.
    """

    id: str | None
    algorithms: frozenset[str]
    key: Any


@attrs.frozen
class KeySet:
    """The usable keys of a JSON Web Key Set (RFC 7517)."""

    keys: tuple[SigningKey, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes) -> KeySet:
        """Return the keys of a document; those for encryption, symmetric and unknown ones are left out.

        Raises:
            ValueError: it is not a key set, or no key is usable.
        """
        keys = tuple(key for document in key_documents(text) for key in _signing_keys(document))
        if not keys:
            raise ValueError("must hold an RSA, EC (P-256, P-384, P-521) or Ed25519 key for signatures")
        return cls(keys)

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; one that names no key needs a set with one key of its algorithm."""
        fitting = [key for key in self.keys if algorithm in key.algorithms and key_id in (None, key.id)]
        is_ambiguous = key_id is None and len(fitting) > 1
        return fitting[0] if fitting and not is_ambiguous else None


def _signing_keys(document: object) -> Iterator[SigningKey]:
    """Yield the key of a document, if it is usable."""
    if not isinstance(document, dict) or document.get("use", "sig") != "sig":
        return
    algorithms = _algorithms(document)
    if not algorithms:
        return
    public = {name: document[name] for name in _PUBLIC_MEMBERS if name in document}
    try:
        key = PyJWK(public, algorithm=min(algorithms)).key
    except (PyJWTError, KeyError, TypeError, ValueError):
        return
    key_id = document.get("kid")
    yield SigningKey(key_id if isinstance(key_id, str) else None, algorithms, key)


def _algorithms(document: Mapping[str, object]) -> frozenset[str]:
    """Return the algorithms of a key; none if its type is not supported."""
    is_rsa = document.get("kty") == "RSA"
    fitting = _RSA if is_rsa else _BY_CURVE.get(str(document.get("crv")), frozenset())
    named = document.get("alg")
    return fitting if named is None else fitting & {str(named)}
