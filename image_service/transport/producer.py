"""Sends an answer: a push producer over extents. What sending on plain TCP and on TLS have in common.

Both send what they can in the call itself and register with the transport only when something is in the
way, so an answer that fits the socket's buffer costs no turn of the reactor.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from image_service.files.base_file import ShortReadError
from image_service.images.extents import Literal
from image_service.transport.observer import AbortReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.python.failure import Failure

    from image_service.files.page_cache import PageCache
    from image_service.images.extents import Extent, FileExtent, Zeros
    from image_service.transport.observer import SentBytes

BRING_BYTES = 1024 * 1024
"""What is waited for at once: the rest of an answer comes while this is on its way."""
_ZEROS = memoryview(bytes(256 * 1024))


def data_of(extent: Literal | Zeros) -> bytes | memoryview:
    """Give the bytes of an extent, of zeros no more than there are in one piece."""
    return extent.data if isinstance(extent, Literal) else _ZEROS[: extent.length]


class Outcomes(Protocol):
    """Who sends: told of an answer's end unless it came within ``send`` itself."""

    def sent(self) -> None:
        """Everything is on its way."""

    def failed(self, reason: AbortReason, detail: str) -> None:
        """The answer cannot be finished; the connection is to be aborted."""


class Sender(Protocol):
    """Sends one answer at a time."""

    body_bytes: int
    """Bytes of the present answer's body that the transport took."""

    def begin_turn(self) -> None:
        """Renew what may be sent before the reactor turns."""

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send an answer.

        Args:
            head: status line and fields.
            body: what follows.

        Returns:
            True when it went out whole; else the outcome is told later.
        """

    def stop(self) -> None:
        """Send nothing more and tell nothing more."""


class NeedsDisk(Exception):
    """What comes next is not present."""

    def __init__(self, extent: FileExtent) -> None:
        super().__init__()
        self.extent = extent


class Queue:
    """The rest of an answer: extents, and how much of the first is done."""

    __slots__ = ("_done", "_extents")

    def __init__(self) -> None:
        self._extents: list[Extent] = []  # the first one comes last
        self._done = 0

    def fill(self, head: bytes, body: Sequence[Extent]) -> None:
        """Take an answer."""
        self._extents = [*reversed(body), Literal(head)]
        self._done = 0

    def clear(self) -> None:
        """Drop what is left."""
        self._extents.clear()

    def __bool__(self) -> bool:
        return bool(self._extents)

    def next(self, limit: int) -> tuple[Extent, bool]:
        """At most ``limit`` bytes of the first extent, and whether anything follows them."""
        first = self._extents[-1]
        stop = min(first.length, self._done + limit)
        more = stop < first.length or len(self._extents) > 1
        return (first if stop - self._done == first.length else first.slice(self._done, stop)), more

    def advance(self, count: int) -> None:
        """Note that so many bytes more are done."""
        self._done += count
        while self._extents and self._done >= self._extents[-1].length:
            self._done -= self._extents.pop().length


class Producer(ABC):
    """What both senders share: the queue, the wait for what is not present, the life cycle."""

    __slots__ = (
        "_brought",
        "_outcomes",
        "_page_cache",
        "_queue",
        "_sending",
        "_sent",
        "_waiting",
        "body_bytes",
    )

    def __init__(self, page_cache: PageCache, outcomes: Outcomes, sent: SentBytes) -> None:
        self.body_bytes = 0
        self._sent = sent
        self._page_cache = page_cache
        self._outcomes = outcomes
        self._queue = Queue()
        self._sending = False
        self._waiting: Deferred[None] | None = None  # for what a thread does
        self._brought = 0  # bytes that are present, whoever may not know it

    def stop(self) -> None:
        """Send nothing more and tell nothing more."""
        self._sending = False
        self._queue.clear()
        if self._waiting is not None:
            self._waiting.cancel()

    def stopProducing(self) -> None:
        """The transport is gone."""
        self.stop()

    def resumeProducing(self) -> None:
        """The transport takes more; go on, and tell the outcome."""
        if self._sending and self._waiting is None:
            self.begin_turn()
            if self._pump():
                self._outcomes.sent()

    @abstractmethod
    def begin_turn(self) -> None:
        """Renew what may be sent before the reactor turns."""

    @abstractmethod
    def _send_on(self) -> bool:
        """Send what the transport takes; True when that was all, else ``resumeProducing`` follows."""

    def _pump(self) -> bool:
        """Send what goes; True when that was all, else ``resumeProducing`` or ``_fail`` follows."""
        try:
            return self._send_on()
        except NeedsDisk as needs:
            self._bring(needs.extent)
        except ShortReadError:
            self._fail(AbortReason.SHORT_READ, "the file is shorter than it was")
        except ConnectionError:
            self._fail(AbortReason.CLIENT_GONE, "the client is gone")
        except OSError as error:
            self._fail(AbortReason.DISK_FAILED, f"the disk failed: {os.strerror(error.errno or 0)}")
        return False

    def _present(self, extent: FileExtent) -> int:
        """Count the bytes that can be sent without waiting, or raise ``NeedsDisk``.

        What was brought for this answer is sent without asking again: not everybody can tell, and what
        comes and is gone again would be waited for for ever.
        """
        if self._brought:
            count, self._brought = min(self._brought, extent.length), 0
            return count
        residency = extent.file.residency or self._page_cache
        count = residency.resident_bytes(extent.file, extent.offset, extent.length)
        if not count:
            raise NeedsDisk(extent)
        return count

    def _read_into(self, buffer: memoryview, extent: FileExtent) -> int:
        """Read what is present of an extent, or raise ``NeedsDisk``, ``ShortReadError`` or ``OSError``."""
        file, offset = extent.file, extent.offset
        if self._brought or file.residency is not None:
            data = os.pread(file.descriptor, self._present(extent), offset)
            count: int | None = len(data)
            buffer[:count] = data
        else:
            count = self._page_cache.read_into(buffer, file, offset)
        if count is None:
            raise NeedsDisk(extent)
        if not count:
            raise ShortReadError(offset, file.size)
        return count

    def _bring(self, extent: FileExtent) -> None:
        """Bring what is not present."""
        extent = extent.slice(0, min(extent.length, BRING_BYTES))
        residency = extent.file.residency or self._page_cache
        bringing = Deferred.fromCoroutine(residency.prefetch(extent.file, extent.offset, extent.length))
        self._wait_for(bringing.addCallback(self._was_brought, extent.length))

    def _was_brought(self, _: None, count: int) -> None:
        self._brought = count

    def _wait_for(self, work: Deferred[None]) -> None:
        """Go on when a thread has done its work."""
        self._waiting = work
        work.addCallbacks(self._work_done, self._work_failed)

    def _work_done(self, _: None) -> None:
        self._waiting = None
        self.resumeProducing()

    def _work_failed(self, failure: Failure) -> None:
        self._waiting = None
        if self._sending:
            self._fail(AbortReason.DISK_FAILED, f"the disk failed: {failure.getErrorMessage()}")

    def _fail(self, reason: AbortReason, detail: str) -> None:
        self.stop()
        self._outcomes.failed(reason, detail)
