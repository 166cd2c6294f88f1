"""Tokens of attempts: a worker sends one with its heartbeats, its artifacts and its result.

The engine's tokens are not signed, so that clients could forge them. These tokens have a MAC:

    token         offset         bytes
    version            0             1   1
    job                1            16   UUID
    attempt           17             4   big-endian, from 1
    tenant            21         2 + n   its length, big-endian; UTF-8
    engine's     23 + n             m
    MAC      23 + n + m            32   HMAC-SHA-256 of all before

in base64url without padding, so that a token is a path segment.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING
from uuid import UUID

import attrs
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from image_service.core.errors import JobTokenMalformed, JobTokenUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = 1
_HEAD = struct.Struct(">B16sIH")
_MAC_BYTES = 32


@attrs.frozen
class JobToken:
    """An attempt of a job.

    Args:
        job_id: UUID.
        attempt: from 1.
        engine_token: names the attempt at the engine.
    """

    job_id: str
    attempt: int
    tenant: str
    engine_token: bytes = attrs.field(repr=False)


class JobTokens:
    """Makes and reads tokens.

    Args:
        secrets: of the instance; the first authenticates new tokens, all authenticate old ones.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = [HKDF(SHA256(), _MAC_BYTES, salt=None, info=b"job token").derive(one) for one in secrets]

    def write(self, token: JobToken) -> str:
        """Return a token as a path segment."""
        tenant = token.tenant.encode()
        head = _HEAD.pack(_VERSION, UUID(token.job_id).bytes, token.attempt, len(tenant))
        content = head + tenant + token.engine_token
        return urlsafe_b64encode(content + _mac(self._keys[0], content)).rstrip(b"=").decode()

    def read(self, text: str) -> JobToken:
        """Return the attempt of a token.

        Raises:
            JobTokenMalformed: it is not a token.
            JobTokenUnknown: no secret of the instance has authenticated it.
        """
        try:
            packed = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, job_id, attempt, tenant_bytes = _HEAD.unpack_from(packed)
            content, mac = packed[:-_MAC_BYTES], packed[-_MAC_BYTES:]
            tenant = content[_HEAD.size : _HEAD.size + tenant_bytes].decode()
        except (binascii.Error, ValueError, struct.error):
            raise JobTokenMalformed("the token of a job is malformed") from None
        if version != _VERSION or len(content) < _HEAD.size + tenant_bytes:
            raise JobTokenMalformed("the token of a job is malformed")
        if not any(hmac.compare_digest(mac, _mac(key, content)) for key in self._keys):
            raise JobTokenUnknown("no attempt of a job has this token")
        return JobToken(str(UUID(bytes=job_id)), attempt, tenant, content[_HEAD.size + tenant_bytes :])


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")
