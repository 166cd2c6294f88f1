"""Sends a response: a push producer over extents. The common base for plain TCP and TLS.

Both send as much as they can within the call and register with the transport only if they have to wait, so a
response that fits the socket's buffer costs no turn of the reactor.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from image_service.common.files.block_cache.source import OriginFailed
from image_service.common.files.local_file import ShortReadError
from image_service.core.extents import Literal
from image_service.server.transport.sending.observer import AbortReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure

    from image_service.common.files.page_cache import PageCache
    from image_service.core.extents import Extent, FileExtent, Zeros
    from image_service.server.transport.sending.observer import SentBytes

PREFETCH_BYTES = 1024 * 1024
"""The bytes that are read from the disk before sending goes on."""
STALL_SECONDS = 10.0
"""How long a response that has begun waits for its origin."""
_ZEROS = memoryview(bytes(256 * 1024))


def data_of(extent: Literal | Zeros) -> bytes | memoryview:
    """Return the bytes of an extent; of zeros at most as many as one buffer holds."""
    return extent.data if isinstance(extent, Literal) else _ZEROS[: extent.length]


class SenderCallbacks(Protocol):
    """The receiver of a sender's reports, unless the response went out within `send`."""

    def response_sent(self) -> None:
        """Handle that the kernel has accepted all of the response."""

    def abort(self, reason: AbortReason, detail: str) -> None:
        """Abort the connection: the response cannot be completed."""


class NotResidentError(Exception):
    """The next bytes of a file cannot be sent without waiting for the disk."""

    def __init__(self, extent: FileExtent) -> None:
        super().__init__()
        self.extent = extent


class ExtentQueue:
    """The rest of a response: extents, and how much of the first is done."""

    __slots__ = ("_done", "_extents")

    def __init__(self) -> None:
        self._extents: list[Extent] = []  # in reverse
        self._done = 0

    def fill(self, head: bytes, body: Sequence[Extent]) -> None:
        """Replace the content by a response."""
        self._extents = [*reversed(body), Literal(head)]
        self._done = 0

    def clear(self) -> None:
        """Drop the rest."""
        self._extents.clear()

    def __bool__(self) -> bool:
        return bool(self._extents)

    def peek(self, limit: int) -> tuple[Extent, bool]:
        """Return at most `limit` bytes of the first extent, and whether anything follows them."""
        first = self._extents[-1]
        stop = min(first.length, self._done + limit)
        more = stop < first.length or len(self._extents) > 1
        return (first if stop - self._done == first.length else first.slice(self._done, stop)), more

    def advance(self, count: int) -> None:
        """Drop the first `count` bytes."""
        self._done += count
        while self._extents and self._done >= self._extents[-1].length:
            self._done -= self._extents.pop().length


class Sender(ABC):
    """Sends one response at a time.

    Args:
        page_cache: reports which bytes of files are in memory, and reads the others in threads.
    """

    __slots__ = (
        "_callbacks",
        "_clock",
        "_held",
        "_page_cache",
        "_prefetched",
        "_queue",
        "_sending",
        "_sent",
        "_waiting",
        "body_bytes",
    )

    def __init__(
        self, page_cache: PageCache, callbacks: SenderCallbacks, sent: SentBytes, clock: IReactorTime
    ) -> None:
        self.body_bytes = 0
        """Bytes of the present response's body that the transport has accepted."""
        self._sent = sent
        self._clock = clock
        self._held: Callable[[], None] | None = None  # ends the hold on the bytes that were fetched last
        self._page_cache = page_cache
        self._callbacks = callbacks
        self._queue = ExtentQueue()
        self._sending = False
        self._waiting: Deferred[None] | None = None  # for a thread
        self._prefetched = 0  # bytes to be sent without asking for their residency

    @abstractmethod
    def begin_turn(self) -> None:
        """Renew the budget of bytes that may be sent before the reactor turns."""

    @abstractmethod
    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send a response; True if all of it was sent, else a callback follows."""

    @abstractmethod
    def _send_queue(self) -> bool:
        """Send as much as the transport accepts; True if that was all, else `resumeProducing` follows."""

    def stop(self) -> None:
        """Send nothing more and call back no more."""
        self._sending = False
        self._queue.clear()
        self._release()
        if self._waiting is not None:
            self._waiting.cancel()

    def stopProducing(self) -> None:
        """The transport is gone."""
        self.stop()

    def resumeProducing(self) -> None:
        """The transport accepts more."""
        if self._sending and self._waiting is None:
            self.begin_turn()
            if self._continue():
                self._release()
                self._callbacks.response_sent()

    def _continue(self) -> bool:
        """Send as much as is possible; True if that was all, else `resumeProducing` or `_fail` follows."""
        try:
            return self._send_queue()
        except NotResidentError as error:
            self._prefetch(error.extent)
        except ShortReadError:
            self._fail(AbortReason.SHORT_READ, "the file is shorter than it was")
        except ConnectionError:
            self._fail(AbortReason.CLIENT_GONE, "the client is gone")
        except OSError as error:
            self._fail(AbortReason.DISK_FAILED, f"the disk failed: {os.strerror(error.errno or 0)}")
        return False

    def _resident_bytes(self, extent: FileExtent) -> int:
        """Return how many bytes can be sent without waiting, or raise `NotResidentError`.

        Bytes that were prefetched for this response are sent without asking the page cache: some file systems
        cannot report it, and bytes that are evicted again and again would be waited for without end.
        """
        length = self._present_bytes(extent)
        if self._prefetched:
            count, self._prefetched = min(self._prefetched, length), 0
            return count
        count = self._page_cache.resident_bytes(extent.file, extent.offset, length)
        if not count:
            raise NotResidentError(extent)
        return count

    def _present_bytes(self, extent: FileExtent) -> int:
        """Return how many bytes are on a local disk until the reactor turns, or raise `NotResidentError`."""
        file = extent.file
        if file.residency is None:
            return extent.length
        count = file.residency.resident_bytes(file, extent.offset, extent.length)
        if not count:
            self._prefetched = 0
            raise NotResidentError(extent)
        return count

    def _read_into(self, buffer: memoryview, extent: FileExtent) -> int:
        """Read the resident bytes; raise `NotResidentError`, `ShortReadError` or `OSError`."""
        file, offset = extent.file, extent.offset
        if self._prefetched:
            data = os.pread(file.descriptor, self._resident_bytes(extent), offset)
            count: int | None = len(data)
            buffer[:count] = data
        else:
            if file.residency is not None:
                buffer = buffer[: self._present_bytes(extent)]
            count = self._page_cache.read_into(buffer, file, offset)
        if count is None:
            raise NotResidentError(extent)
        if not count:
            raise ShortReadError(offset, file.size)
        return count

    def _prefetch(self, extent: FileExtent) -> None:
        """Wait until the next bytes are resident."""
        extent = extent.slice(0, min(extent.length, PREFETCH_BYTES))

        def set_prefetched(_: None) -> None:
            self._prefetched = extent.length

        self._wait_for(Deferred.fromCoroutine(self._make_resident(extent)).addCallback(set_prefetched))

    async def _make_resident(self, extent: FileExtent) -> None:
        file, offset, length = extent.file, extent.offset, extent.length
        if file.residency is not None:
            self._release()
            fetching = Deferred.fromCoroutine(file.residency.prefetch(file, offset, length))
            await fetching.addTimeout(STALL_SECONDS, self._clock, _stalled)
            self._held = file.residency.try_hold(file, offset, length)
            if self._page_cache.resident_bytes(file, offset, length):
                return
        await self._page_cache.prefetch(file, offset, length)

    def _release(self) -> None:
        """Let go the bytes that were held for this response."""
        if self._held is not None:
            self._held()
            self._held = None

    def _wait_for(self, work: Deferred[None]) -> None:
        """Go on when a thread has done its work."""

        def done(_: None) -> None:
            self._waiting = None
            self.resumeProducing()

        def failed(failure: Failure) -> None:
            self._waiting = None
            if not self._sending:
                return
            if isinstance(failure.value, OriginFailed):
                self._fail(AbortReason.ORIGIN_FAILED, f"the origin failed: {failure.value.strerror}")
            else:
                self._fail(AbortReason.DISK_FAILED, f"the disk failed: {failure.getErrorMessage()}")

        self._waiting = work
        work.addCallbacks(done, failed)

    def _fail(self, reason: AbortReason, detail: str) -> None:
        self.stop()
        self._callbacks.abort(reason, detail)


def _stalled(_: object, seconds: float) -> NoReturn:
    raise OriginFailed(f"no bytes came for {seconds:g} s")
