"""The interface of an origin to the block cache: bytes by ranges, the identity of a version, digests."""

from __future__ import annotations

import errno
import hashlib
from typing import Protocol

import attrs

GRANULE_BYTES = 1024 * 1024
"""The unit that is present or absent, fetched, evicted and verified as a whole."""
SHA256_BYTES = 32


class OriginFailed(OSError):
    """The origin did not return the bytes that were asked for.

    Args:
        detail: the reason, without credentials.
        retry_after_seconds: when another attempt may succeed.
    """

    def __init__(self, detail: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(errno.EIO, detail)
        self.retry_after_seconds = retry_after_seconds


class OriginChanged(OriginFailed):
    """The origin has another version than the one that is cached."""


class DigestMismatch(OriginFailed):
    """A block of the origin does not have the digest of the list."""


class RangeSource(Protocol):
    """Fetches bytes of one pinned version. Called in several threads at once; blocks."""

    def fetch(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset` on; they end at or before the version's size.

        Raises:
            OriginChanged: the origin has another version.
            OriginFailed: these bytes cannot be fetched now.
        """


class GranuleCheck(Protocol):
    """Says whether the content of a granule is right. Called in several threads at once."""

    def check(self, granule: int, data: memoryview) -> None:
        """Raise `DigestMismatch` if it is wrong."""


@attrs.frozen
class CacheIdentity:
    """The identity of a version: files with equal ones are one in the cache.

    Args:
        url: of the origin, without query and user information.
        validator: the strong ETag, or the digest of the digest list.
        size: bytes.
    """

    url: str
    validator: str
    size: int

    @property
    def digest(self) -> str:
        """SHA-256 in lower-case hex, the name of the version's directory."""
        text = f"{self.url}\n{self.validator}\n{self.size}\n{GRANULE_BYTES}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def granules(self) -> int:
        """The number of granules of the file; the last one may be shorter."""
        return -(-self.size // GRANULE_BYTES)


@attrs.frozen
class GranuleDigests:
    """The SHA-256 of each granule, one behind the other (32 bytes each)."""

    digests: bytes = attrs.field(repr=False)

    def check(self, granule: int, data: memoryview) -> None:
        """Raise `DigestMismatch` unless the content of a granule has its digest."""
        start = granule * SHA256_BYTES
        if hashlib.sha256(data).digest() != self.digests[start : start + SHA256_BYTES]:
            raise DigestMismatch(f"the MiB at offset {granule * GRANULE_BYTES} does not have its digest")
