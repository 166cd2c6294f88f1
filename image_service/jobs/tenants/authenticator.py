"""Authenticates requests: by JWT, or by the listener they came through."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Protocol

import attrs
import jwt

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import Unauthorized
from image_service.jobs.principal import Principal
from image_service.jobs.tenants.keys import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.jobs.tenants.access_list import AccessList
    from image_service.jobs.tenants.key_sources import KeySource
    from image_service.jobs.tenants.keys import SigningKey

_LEEWAY_SECONDS = 10  # by which clocks may differ
_TIMES = {"exp", "nbf", "iat"}
MAX_VERIFIED = 256
"""Tokens whose claims are kept: verifying a signature for each request took a tenth of a busy role's CPU."""
_LAST_TIME = 253_402_300_799  # of the year 9999
_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="image-service"'),)
_REASONS: dict[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token has another issuer",
    jwt.InvalidSignatureError: "the signature of the token is wrong",
}


class Authenticator(Protocol):
    """Finds the principal of a request."""

    async def authenticate(self, authorization: str | None, *, is_local: bool) -> Principal:
        """Return the principal of a request.

        Args:
            is_local: it came through a Unix socket.

        Raises:
            Unauthorized: the token is missing, expired, or of no accepted issuer, audience or key.
            Forbidden: the access list does not admit it.
            TenantMissing: it names no tenant.
            Unavailable: the keys could never be fetched.
        """


@attrs.frozen
class OpenAuthenticator:
    """Admits every request as the operator's, of the default tenant.

    Args:
        worker_token: of this service's built-in worker.
    """

    worker_token: str = attrs.field(repr=False)

    async def authenticate(
        self,
        authorization: str | None,
        *,
        is_local: bool,
    ) -> Principal:
        """Return the operator."""
        is_built_in = is_local and _is_equal(_bearer_token(authorization), self.worker_token)
        return Principal(is_operator=True, is_built_in=is_built_in)


@attrs.frozen
class VerifiedToken:
    """The claims of a token, and the key that has verified its signature.

    Args:
        begins: seconds since the epoch from which on the claims are valid, with the leeway.
        ends: from which on they are not.
    """

    key: SigningKey
    key_id: str | None
    algorithm: str
    claims: Mapping[str, object]
    begins: float
    ends: float


@attrs.frozen
class JwtAuthenticator:
    """Requires tokens of requests over TCP; those through a Unix socket are of the default tenant.

    Args:
        keys: that sign tokens.
        issuer: None: any.
        audience: None: any.
        worker_token: of this service's built-in worker.
    """

    keys: KeySource
    access_list: Callable[[], AccessList]
    issuer: str | None
    audience: str | None
    worker_token: str = attrs.field(repr=False)
    _verified: LruCache[bytes, VerifiedToken] = attrs.field(
        factory=lambda: LruCache(MAX_VERIFIED), init=False, repr=False, eq=False
    )

    async def authenticate(self, authorization: str | None, *, is_local: bool) -> Principal:
        """Return the principal of a request; see `Authenticator`."""
        token = _bearer_token(authorization)
        if _is_equal(token, self.worker_token):
            return Principal(is_operator=True, is_built_in=is_local)
        if is_local:
            return Principal()
        if not token:
            raise _unauthorized("a bearer token is required")
        return self.access_list().admit(await self._find_claims(token))

    async def _find_claims(self, token: str) -> Mapping[str, object]:
        """Return the claims of a token; its signature is verified once while the key is the same."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if (
            known is not None
            and known.begins <= time.time() < known.ends
            and await self.keys.find(known.key_id, known.algorithm) is known.key
        ):
            return known.claims
        algorithm, key_id = self._read_header(token)
        key = await self.keys.find(key_id, algorithm)
        if key is None:
            raise _unauthorized("the token is signed with an unknown key")
        claims = self._verify(token, key)
        begins, ends = max(_time(claims, "nbf"), _time(claims, "iat")), _time(claims, "exp")
        self._verified[digest] = VerifiedToken(
            key, key_id, algorithm, claims, begins - _LEEWAY_SECONDS, ends + _LEEWAY_SECONDS
        )
        return claims

    def _read_header(self, token: str) -> tuple[str, str | None]:
        """Return the algorithm and the name of the key of a token that is not verified yet."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, RecursionError):
            raise _unauthorized("the token is not a JSON Web Token") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _unauthorized("the algorithm of the token is not accepted")
        return algorithm, key_id

    def _verify(self, token: str, key: SigningKey) -> dict[str, object]:
        required = ["exp", *(["iss"] if self.issuer else []), *(["aud"] if self.audience else [])]
        try:
            claims: dict[str, object] = jwt.decode(
                token,
                key.key,
                algorithms=sorted(key.algorithms),
                issuer=self.issuer,
                audience=self.audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": required, "verify_aud": self.audience is not None},
            )
        except jwt.MissingRequiredClaimError as error:
            raise _unauthorized(f"the token has no {error.claim}") from None
        except (jwt.PyJWTError, RecursionError) as error:
            reasons = (reason for kind, reason in _REASONS.items() if isinstance(error, kind))
            raise _unauthorized(next(reasons, "the token is malformed")) from None
        for name in _TIMES & claims.keys():
            if not _is_time(claims[name]):
                raise _unauthorized(f"{name} of the token is not a time in seconds")
        return claims


def _is_time(value: object) -> bool:
    """PyJWT also takes strings, and any number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LAST_TIME


def _time(claims: Mapping[str, object], name: str) -> int:
    """Return a time as PyJWT compares it; 0 if there is none."""
    value = claims.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0


def _is_equal(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), secret.encode())


def _bearer_token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unauthorized(reason: str) -> Unauthorized:
    return Unauthorized(reason, fields=_CHALLENGE)
