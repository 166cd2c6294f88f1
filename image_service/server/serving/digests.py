"""SHA-256 of whole boot images: computed in a thread, one image at a time, and cached by entity tag.

No download waits for one: hashing takes about a second per GB. A request for a digest waits for a moment; a
digest that is not ready by then is still computed, and found by a later request.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from twisted.internet.defer import Deferred, DeferredLock, fail, succeed

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import BaseImageError, NotFound, Unavailable
from image_service.core.extents import FileExtent, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.extents import Extent
    from image_service.core.images.boot_image import BootImage

T = TypeVar("T")

TIMEOUT_SECONDS = 2.5
"""How long a request waits for its digest, its image included: clients get a response within 3 s."""
MAX_WAITING = 8
"""Images that may wait for the one being hashed; each keeps its own bytes in memory meanwhile."""
MAX_CACHED = 4096
RETRY_AFTER_SECONDS = 5
BLOCK_BYTES = 1024 * 1024
"""Read and hashed at once, without the GIL; hashing may be stopped between two blocks."""

_ZEROS = memoryview(bytes(BLOCK_BYTES))


class Digests:
    """Computes and caches digests, by entity tag: equal tags stand for equal bytes.

    A computation is not canceled when its requests stop waiting.

    Args:
        in_thread: runs work in a pool with one low-priority thread.
        max_waiting: images that wait for their turn; more are refused.
    """

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: Callable[[Callable[[], bytes]], Deferred[bytes]],
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._timeout_seconds = timeout_seconds
        self._max_waiting = max_waiting
        self._cache: LruCache[str, bytes] = LruCache(MAX_CACHED)
        self._etags: LruCache[bytes, str] = LruCache(MAX_CACHED)
        self._computing: SingleFlight[str, bytes] = SingleFlight()
        self._lock = DeferredLock()
        self._stopping = threading.Event()

    def get_cached_digest(self, etag: str) -> bytes | None:
        """Return the digest (32 bytes) of an image, by its ETag with quotes; None if it is not cached."""
        return self._cache.get(etag)

    def find_etag(self, digest: bytes) -> str | None:
        """Return the ETag of the image that last had a digest (32 bytes); None: none is cached."""
        return self._etags.get(digest)

    def deadline(self) -> float:
        """Return the time, by the clock, until which a request that arrives now waits."""
        return self._clock.seconds() + self._timeout_seconds

    def get(self, image: BootImage, deadline: float | None = None) -> Deferred[bytes]:
        """Return or compute the digest of an image.

        Args:
            image: its files must stay open until `stop` is done.
            deadline: the value of `deadline` when the request came; None: it comes now.

        Returns:
            fires with 32 bytes. Fails with NotFound if bytes of the image are not on local disk; with
            Unavailable at the deadline, if too many images wait, or when the service stops; with
            BaseImageError if a file of the image cannot be read to the image's end.
        """
        digest = self.get_cached_digest(image.etag)
        if digest is not None:
            return succeed(digest)
        if not is_local(image.extents.extents):
            return fail(
                NotFound(
                    "there is no digest yet: its base image is remote, and not all of it is on local disk;"
                    " GET /images says how much is"
                )
            )
        computed = self._computing.join(image.etag, lambda: self._compute(image))
        return self.wait(computed, "the digest", deadline)

    def wait(self, computed: Deferred[T], name: str, deadline: float | None) -> Deferred[T]:
        """Return what is computed, as `get` does; `name` is its name in messages."""
        until = self.deadline() if deadline is None else deadline
        too_slow = partial(self._too_slow, name)
        return computed.addTimeout(max(0.0, until - self._clock.seconds()), self._clock, too_slow)

    async def run(self, work: Callable[[Callable[[], None]], bytes]) -> bytes:
        """Run other work in the thread, in its turn.

        Args:
            work: is called with a function that it calls between blocks, which raises to stop.

        Raises:
            Unavailable: too many images wait, or the service stops.
        """
        if len(self._lock.waiting) >= self._max_waiting:
            busy = f"{self._max_waiting} digests are already queued"
            raise Unavailable(busy, retry_after_seconds=RETRY_AFTER_SECONDS)
        async with self._lock:
            self._check_stopping()
            return await self._in_thread(partial(work, self._check_stopping))

    async def stop(self) -> None:
        """Stop the computation and refuse new ones; no file is read afterwards."""
        self._stopping.set()
        await self._lock.run(lambda: None)  # acquired after all that wait, which end at once

    async def _compute(self, image: BootImage) -> bytes:
        digest = await self.run(partial(sha256_of_extents, image.extents.extents))
        self._cache[image.etag] = digest
        self._etags[digest] = image.etag
        return digest

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the service is shutting down", retry_after_seconds=RETRY_AFTER_SECONDS)

    def _too_slow(self, name: str, *_: object) -> NoReturn:
        raise Unavailable(
            f"{name} was not ready within {self._timeout_seconds:g} s; it is still being computed",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def is_local(extents: Iterable[Extent]) -> bool:
    """Return True unless bytes of a remote base image are absent, which would all be fetched."""
    files = (extent for extent in extents if isinstance(extent, FileExtent))
    return all(
        extent.file.residency is None
        or extent.file.residency.is_present(extent.file, extent.offset, extent.length)
        for extent in files
    )


def sha256_of_extents(extents: Iterable[Extent], check: Callable[[], None]) -> bytes:
    """Return the SHA-256 (32 bytes) of extents as a client would get them. Blocks.

    Args:
        check: called before each block of at most `BLOCK_BYTES`; may raise to stop.

    Raises:
        BaseImageError: a file is shorter than its extent, or the disk fails.
    """
    digest = sha256()
    for extent in extents:
        position = 0
        while position < extent.length:
            check()
            data = read_block(extent.slice(position, min(position + BLOCK_BYTES, extent.length)))
            digest.update(data)
            position += len(data)
    return digest.digest()


def read_block(extent: Extent) -> bytes | memoryview:
    """Return the bytes of an extent of at most `BLOCK_BYTES`; of a file possibly fewer, but at least one."""
    if not isinstance(extent, FileExtent):
        return extent.data if isinstance(extent, Literal) else _ZEROS[: extent.length]
    file, offset = extent.file, extent.offset
    name = Path(file.path).name
    # No posix_fadvise: the downloads share the descriptor, and read-ahead made nothing faster.
    try:
        data = file.read_at(offset, extent.length)
    except OSError as error:
        raise BaseImageError(f"{name} cannot be read at offset {offset}: {error.strerror}") from error
    if not data:
        raise BaseImageError(f"{name} ends at or before offset {offset}; it had {file.size} bytes")
    return data


def repr_digest(digest: bytes) -> str:
    """Return the value of Repr-Digest (RFC 9530 section 3) for a digest of 32 bytes."""
    return f"sha-256=:{b64encode(digest).decode('ascii')}:"


def checksum_line(digest: bytes, file_name: str) -> bytes:
    """Return the line by which `sha256sum -c` checks a download, without comments: busybox refuses them."""
    return f"{digest.hex()}  {file_name}\n".encode()
