"""The digest of a remote file as a whole: its bytes are read once, and compared with what names them.

A digest of the whole says nothing of a range. So the SHA-256 of each granule is taken while the whole is
read, and if the whole is right, the block cache compares with them what it has and what it fetches then.

Files, each complete or absent, which all processes on the cache see:

    VERSION/digests     of the granules, one behind the other; the whole had its digest
    VERSION/compared    how many granules differed that were in the cache before
    VERSION.refused     the whole had another digest; it stays when the version is removed
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.atomic import publish_file
from image_service.common.files.block_cache.source import GRANULE_BYTES, SHA256_BYTES
from image_service.core.errors import BaseImageError
from image_service.server.catalog.remote.source import LoggedDigests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from image_service.common.files.block_cache.block_cache import BlockCache
    from image_service.common.files.block_cache.source import CacheIdentity


class WholeRefused(BaseImageError):
    """The bytes of a file as a whole do not have the digest that names them."""


@attrs.define(eq=False)
class WholeDigest:
    """What is known of a version as a whole, and the digests of its granules once they are known.

    Args:
        directory: of the cache.
        image: its name, for the log.
    """

    directory: Path
    identity: CacheIdentity
    image: str
    _granules: LoggedDigests | None = attrs.field(default=None, init=False)
    _differing: int | None = attrs.field(default=None, init=False)

    def check(self, granule: int, data: memoryview) -> None:
        """Raise `DigestMismatch` if the digests are known, and the content of a granule has another one."""
        if (digests := self._find_digests()) is not None:
            digests.check(granule, data)

    @property
    def differing(self) -> int | None:
        """Granules in the cache that were wrong, and are absent now; None: they are not all compared."""
        if self._differing is None:
            with suppress(FileNotFoundError, ValueError):
                self._differing = int(self._compared.read_text("ascii"))
        return self._differing

    def raise_if_refused(self) -> None:
        """Raise `WholeRefused` if the whole was read, and had another digest."""
        try:
            reason = self._refused.read_text()
        except FileNotFoundError:
            return
        raise WholeRefused(f"{reason}; remove {self._refused} to have it read again")

    def verify(self, cache: BlockCache, blocks: Iterable[bytes], interrupt: Callable[[], None]) -> None:
        """Read the whole, unless that is done; then compare what is in the cache. Blocks.

        Args:
            cache: has the version open.
            blocks: of the whole, in order; what they raise ends this.
            interrupt: called now and then; what it raises ends this, too.

        Raises:
            OSError: of the cache.
        """
        if self._find_digests() is None:
            found, digests = _digest(blocks, self.identity.validator.partition(":")[0], interrupt)
            if found != self.identity.validator:
                reason = f"{self.identity.url}: the digest of {self.identity.validator} as a whole is {found}"
                _publish(self._refused, reason.encode())
                return
            _publish(self._digests, digests)
        differing = cache.compare(self.identity, interrupt)
        _publish(self._compared, str(differing).encode())

    def _find_digests(self) -> LoggedDigests | None:
        if self._granules is None:
            try:
                content = self._digests.read_bytes()
            except FileNotFoundError:
                return None
            if len(content) == self.identity.granules * SHA256_BYTES:
                self._granules = LoggedDigests(content, self.image)
        return self._granules

    @property
    def _digests(self) -> Path:
        return self.directory / self.identity.digest / "digests"

    @property
    def _compared(self) -> Path:
        return self.directory / self.identity.digest / "compared"

    @property
    def _refused(self) -> Path:
        return self.directory / f"{self.identity.digest}.refused"


def _digest(blocks: Iterable[bytes], algorithm: str, interrupt: Callable[[], None]) -> tuple[str, bytes]:
    """Return the digest of the whole, and the SHA-256 of each granule."""
    whole, digests = hashlib.new(algorithm), bytearray()
    granule, left = hashlib.sha256(), GRANULE_BYTES
    for block in blocks:
        interrupt()
        whole.update(block)
        rest = memoryview(block)
        while rest:
            granule.update(rest[:left])
            taken = min(left, len(rest))
            rest, left = rest[taken:], left - taken
            if not left:
                digests += granule.digest()
                granule, left = hashlib.sha256(), GRANULE_BYTES
    if left < GRANULE_BYTES:
        digests += granule.digest()
    return f"{algorithm}:{whole.hexdigest()}", bytes(digests)


def _publish(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    publish_file(temporary, path)
