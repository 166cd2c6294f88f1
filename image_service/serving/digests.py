"""SHA-256 of whole boot images: taken in a thread, one image at a time, and kept by entity tag.

Beside the downloads, never on their way: a digest costs a processor about one second per GB. Who asks waits
for a moment; what is not known by then goes on being made and is found by who asks again.
"""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from twisted.internet.defer import Deferred, DeferredLock, succeed

from image_service.concurrency.lru import LruCache
from image_service.concurrency.single_flight import SingleFlight
from image_service.errors import BaseImageError, Unavailable
from image_service.images.extents import FileExtent, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twisted.internet.interfaces import IReactorTime

    from image_service.images.boot_image import BootImage
    from image_service.images.extents import Extent

T = TypeVar("T")

PATIENCE_SECONDS = 2.5
"""How long a request waits for its digest, its image included: who asks is to be told within 3 s."""
MAX_WAITING = 8
"""Images that may wait for the one being hashed; each keeps its own bytes in memory meanwhile."""
MAX_KEPT = 4096
RETRY_AFTER_SECONDS = 5
PIECE_BYTES = 1024 * 1024
"""What is read and hashed at once, without the GIL; between two pieces the service may end."""
NICENESS = 10
"""Of the hashing thread: with the reactor's own, the two fought for one processor and answers halved."""

_ZEROS = memoryview(bytes(PIECE_BYTES))


class Digests:
    """Takes digests and keeps the latest.

    A digest belongs to an entity tag: equal ones stand for equal bytes. Nothing that is begun is cancelled
    because somebody stops waiting for it.

    Args:
        clock: times those who wait.
        in_thread: runs what takes a digest, by ``in_background`` in a pool of its own; one thread is enough.
        patience_seconds: how long a request waits.
    """

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: Callable[[Callable[[], bytes]], Deferred[bytes]],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._patience_seconds = patience_seconds
        self._kept: LruCache[str, bytes] = LruCache(MAX_KEPT)
        self._taking: SingleFlight[str, bytes] = SingleFlight()
        self._turn = DeferredLock()
        self._stopping = threading.Event()

    def known(self, etag: str) -> bytes | None:
        """Find a digest, without waiting.

        Args:
            etag: of the image, quotes included.

        Returns:
            32 bytes; None: it has not been taken, or long ago.
        """
        return self._kept.get(etag)

    def until(self) -> float:
        """Tell until when a request that comes now waits, by the clock."""
        return self._clock.seconds() + self._patience_seconds

    def get(self, image: BootImage, until: float | None = None) -> Deferred[bytes]:
        """Find or take the digest of an image.

        Args:
            image: which; its files must stay open until ``stop`` is done.
            until: what ``until`` said when the request came; None: it comes now.

        Returns:
            fires with 32 bytes, at once where they are known. Fails with Unavailable where they are not there
            in time (asking again finds them), where too many images wait, or the service stops; with
            BaseImageError where a file of the image cannot be read to the image's end.
        """
        digest = self.known(image.etag)
        if digest is not None:
            return succeed(digest)
        taken = self._taking.join(image.etag, lambda: self._take(image))
        due = self.until() if until is None else until
        seconds = max(0.0, due - self._clock.seconds())
        return taken.addTimeout(seconds, self._clock, self._too_slow)

    async def stop(self) -> None:
        """End what is going on and refuse what comes; behind it no file is read any more."""
        self._stopping.set()
        await self._turn.run(lambda: None)  # its turn comes behind all that wait, which end at once

    async def _take(self, image: BootImage) -> bytes:
        if len(self._turn.waiting) >= MAX_WAITING:
            busy = f"{MAX_WAITING} images wait for their digests already"
            raise Unavailable(busy, retry_after_seconds=RETRY_AFTER_SECONDS)
        async with self._turn:
            self._check()
            digest = await self._in_thread(partial(sha256_of, image.extents.extents, self._check))
        self._kept[image.etag] = digest
        return digest

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the service stops", retry_after_seconds=RETRY_AFTER_SECONDS)

    def _too_slow(self, *_: object) -> NoReturn:
        raise Unavailable(
            f"the digest could not be taken within {self._patience_seconds:g} s; it is still being taken",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def in_background(work: Callable[[], T]) -> T:
    """Run work in the present thread, which gives way to the others from now on.

    Args:
        work: what takes long, such as a digest.

    Returns:
        what ``work`` does.
    """
    with suppress(PermissionError):  # the whole process gives way more than that already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    return work()


def sha256_of(extents: Iterable[Extent], check: Callable[[], None]) -> bytes:
    """Hash bytes as a client would get them. Blocks.

    Args:
        extents: the bytes.
        check: is called before each piece of at most ``PIECE_BYTES``; what it raises ends the hashing.

    Returns:
        32 bytes.

    Raises:
        BaseImageError: a file is shorter than its extent, or the disk fails.
    """
    digest = sha256()
    for extent in extents:
        position = 0
        while position < extent.length:
            check()
            data = _bytes_of(extent.slice(position, min(position + PIECE_BYTES, extent.length)))
            digest.update(data)
            position += len(data)
    return digest.digest()


def _bytes_of(extent: Extent) -> bytes | memoryview:
    """The bytes of an extent no longer than a piece; of a file possibly fewer, but never none."""
    if isinstance(extent, FileExtent):
        return _read(extent)
    return extent.data if isinstance(extent, Literal) else _ZEROS[: extent.length]


def _read(extent: FileExtent) -> bytes:
    file, offset = extent.file, extent.offset
    name = Path(file.path).name
    # No posix_fadvise: the descriptor is that of the downloads, and reading ahead made nothing faster.
    try:
        data = file.read_at(offset, extent.length)
    except OSError as error:
        raise BaseImageError(f"{name} cannot be read at offset {offset}: {error.strerror}") from error
    if not data:
        raise BaseImageError(f"{name} ends at or before offset {offset}; it had {file.size} bytes")
    return data


def repr_digest(digest: bytes) -> str:
    """The value of ``Repr-Digest`` (RFC 9530 section 3).

    Args:
        digest: 32 bytes.

    Returns:
        one member of the dictionary, a byte sequence of RFC 8941.
    """
    return f"sha-256=:{b64encode(digest).decode('ascii')}:"


def checksum_line(digest: bytes, file_name: str) -> bytes:
    """What ``sha256sum -c`` checks a download by.

    Args:
        digest: 32 bytes.
        file_name: what the download is saved as.

    Returns:
        the line for the file, and nothing else: busybox takes a comment for a failed check.
    """
    return f"{digest.hex()}  {file_name}\n".encode()
