"""An origin in memory: any size, each MiB with a pattern of its own, and faults that a test asks for."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.block_cache.source import GRANULE_BYTES, CacheIdentity, GranuleDigests

if TYPE_CHECKING:
    from collections.abc import Callable

POISON = b"\xde"


def content(offset: int, length: int) -> bytes:
    """Return the bytes of every origin; no two MiB are alike."""
    pieces = []
    while length > 0:
        granule, start = divmod(offset, GRANULE_BYTES)
        count = min(length, GRANULE_BYTES - start)
        pattern = hashlib.sha256(str(granule).encode()).digest()
        skipped, first = start % 32, start // 32
        pieces.append((pattern * ((start + count + 31) // 32 - first))[skipped : skipped + count])
        offset, length = offset + count, length - count
    return b"".join(pieces)


def identity_of(size: int, name: str = "base") -> CacheIdentity:
    """Return what identifies an origin of a size."""
    return CacheIdentity(f"https://origin.example.org/{name}.iso", '"1"', size)


def digests_of(size: int) -> GranuleDigests:
    """Return the digests of an origin of a size."""
    offsets = range(0, size, GRANULE_BYTES)
    return GranuleDigests(
        b"".join(
            hashlib.sha256(content(offset, min(GRANULE_BYTES, size - offset))).digest() for offset in offsets
        )
    )


@attrs.define(eq=False)
class Origin:
    """A source that records what is fetched.

    Args:
        before: called with offset and length before the bytes are there; may raise or wait.
        damage: called with offset and bytes, which it may change.
    """

    before: Callable[[int, int], object] = lambda *_: None
    damage: Callable[[int, memoryview], object] = lambda *_: None
    fetched: list[tuple[int, int]] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def fetch(self, offset: int, target: memoryview) -> None:
        """Fill the target with the pattern."""
        with self._lock:
            self.fetched.append((offset, len(target)))
        self.before(offset, len(target))
        target[:] = content(offset, len(target))
        self.damage(offset, target)

    @property
    def granules(self) -> list[int]:
        """Numbers of the granules in the order of fetching."""
        return [
            granule
            for offset, length in self.fetched
            for granule in range(offset // GRANULE_BYTES, -(-(offset + length) // GRANULE_BYTES))
        ]
