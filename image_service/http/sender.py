"""Sends an answer: one push producer over extents, by sendfile on plain TCP, by write on TLS.

Both send what they can in the call itself and register with the transport only when something is in the
way, so an answer that fits the socket's buffer costs no turn of the reactor.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.http.observer import Abort
from image_service.images.extents import Extent, FileExtent, Literal, Zeros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.tcp import Server
    from twisted.protocols.tls import TLSMemoryBIOProtocol
    from twisted.python.failure import Failure

    from image_service.http.observer import Observer
    from image_service.http.page_cache import PageCache

TURN_BYTES = 4 * 1024 * 1024
"""What one connection may send before the others have their turn."""
SENDFILE_BYTES = 1024 * 1024
"""What one sendfile is asked for: above it there is nothing to gain, below it system calls cost."""
WRITE_BYTES = 256 * 1024
"""What one write to TLS holds."""
COPY_BYTES = 16 * 1024
"""Up to here one copy and one system call cost less than a probe and two system calls."""
_SMALLEST_CHARGE = 16 * 1024  # so that a pipeline of small answers ends its turn too

_ZEROS = memoryview(bytes(WRITE_BYTES))


def _data(extent: Literal | Zeros) -> bytes | memoryview:
    return extent.data if isinstance(extent, Literal) else _ZEROS[: extent.length]


class Outcomes(Protocol):
    """Who sends: told of an answer's end unless it came within ``send`` itself."""

    def sent(self) -> None:
        """Everything is on its way."""

    def failed(self, reason: Abort, detail: str) -> None:
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


class _ShortReadError(Exception):
    """A file is shorter than it was."""


class _NeedsDisk(Exception):
    def __init__(self, extent: FileExtent) -> None:
        super().__init__()
        self.extent = extent


class _Queue:
    """The rest of an answer: extents, and how much of the first is done."""

    def __init__(self) -> None:
        self._extents: deque[Extent] = deque()
        self._done = 0

    def fill(self, head: bytes, body: Sequence[Extent]) -> None:
        self._extents = deque((Literal(head), *body))
        self._done = 0

    def clear(self) -> None:
        self._extents.clear()

    def __bool__(self) -> bool:
        return bool(self._extents)

    def next(self, limit: int) -> tuple[Extent, bool]:
        """At most ``limit`` bytes of the first extent, and whether anything follows them."""
        first = self._extents[0]
        stop = min(first.length, self._done + limit)
        more = stop < first.length or len(self._extents) > 1
        return (first if stop - self._done == first.length else first.cut(self._done, stop)), more

    def advance(self, count: int) -> None:
        self._done += count
        if self._done == self._extents[0].length:
            self._extents.popleft()
            self._done = 0


class _Producer(ABC):
    """What both senders share: the queue, the disk, the life cycle."""

    def __init__(self, page_cache: PageCache, outcomes: Outcomes, observer: Observer) -> None:
        self.body_bytes = 0
        self._observer = observer
        self._page_cache = page_cache
        self._outcomes = outcomes
        self._queue = _Queue()
        self._sending = False
        self._on_disk = False

    def stop(self) -> None:
        """Send nothing more and tell nothing more."""
        self._sending = False
        self._queue.clear()

    def stopProducing(self) -> None:
        """The transport is gone."""
        self.stop()

    def resumeProducing(self) -> None:
        """The transport takes more; go on, and tell the outcome."""
        if self._sending and not self._on_disk:
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
        except _NeedsDisk as needs:
            self._await_disk(needs.extent)
        except _ShortReadError:
            self._fail(Abort.FILE_SHORTER, "the file is shorter than it was")
        except ConnectionError:
            self._fail(Abort.CLIENT_GONE, "the client is gone")
        except OSError as error:
            self._fail(Abort.DISK_FAILED, f"the disk failed: {os.strerror(error.errno or 0)}")
        return False

    def _await_disk(self, extent: FileExtent) -> None:
        self._on_disk = True
        loading = self._page_cache.load(extent.file, extent.offset, extent.length)
        loading.addCallbacks(self._disk_done, self._disk_failed)

    def _disk_done(self, _: None) -> None:
        self._on_disk = False
        self.resumeProducing()

    def _disk_failed(self, failure: Failure) -> None:
        self._on_disk = False
        if self._sending:
            self._fail(Abort.DISK_FAILED, f"the disk failed: {failure.getErrorMessage()}")

    def _fail(self, reason: Abort, detail: str) -> None:
        self.stop()
        self._outcomes.failed(reason, detail)


@implementer(IPushProducer)
class SendfileSender(_Producer):
    """Plain TCP: file extents by sendfile, everything else straight to the socket.

    Nothing is ever written through the transport, whose own buffer thus stays empty; the transport only
    tells when the socket is writable again.

    Args:
        transport: connected, without data of its own to send.
        page_cache: keeps the disk out of the reactor.
        outcomes: told of the end.
        observer: counts the bytes.
    """

    def __init__(
        self, transport: Server, page_cache: PageCache, outcomes: Outcomes, observer: Observer
    ) -> None:
        super().__init__(page_cache, outcomes, observer)
        self._transport = transport
        self._socket: socket.socket = transport.getHandle()
        self._budget = 0
        self._registered = False

    def begin_turn(self) -> None:
        """Renew what may be sent before the reactor turns."""
        self._budget = TURN_BYTES

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send an answer (see ``Sender``)."""
        self.body_bytes = -len(head)
        if len(body) == 1 and body[0].length <= COPY_BYTES:
            data = self._copy(body[0])
            head, body = (head + data, ()) if data is not None else (head, body)
        self._queue.fill(head, body)
        self._sending = True
        return self._pump()

    def _copy(self, extent: Extent) -> bytes | None:
        """A small extent's bytes, unless the disk has to be waited for or something is wrong with them."""
        if not isinstance(extent, FileExtent):
            return bytes(_data(extent))
        with suppress(OSError):
            data = self._page_cache.read(extent.file, extent.offset, extent.length)
            return data if data is not None and len(data) == extent.length else None
        return None

    def pauseProducing(self) -> None:
        """The transport never says so: nothing is written through it."""

    def _send_on(self) -> bool:
        with suppress(BlockingIOError):
            while self._queue and self._budget > 0:
                self._send_some()
        if self._queue:
            self._await_writable()
            return False
        self._finish()
        return True

    def _send_some(self) -> None:
        extent, more = self._queue.next(min(self._budget, SENDFILE_BYTES))
        if isinstance(extent, FileExtent):
            count = self._send_file(extent)
            self._observer.bytes_sent("sendfile", count)
        else:
            count = self._socket.send(_data(extent), socket.MSG_MORE if more else 0)
            self._observer.bytes_sent("copy", count)
        self._queue.advance(count)
        self.body_bytes += count
        self._budget -= max(count, _SMALLEST_CHARGE)

    def _send_file(self, extent: FileExtent) -> int:
        if not self._page_cache.holds(extent.file, extent.offset, extent.length):
            raise _NeedsDisk(extent)
        descriptor = self._socket.fileno()
        count = os.sendfile(descriptor, extent.file.descriptor, extent.offset, extent.length)
        if count == 0:
            raise _ShortReadError
        return count

    def _await_writable(self) -> None:
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        # What the transport itself does after a write that filled its buffer: resume once writable.
        self._transport.producerPaused = True
        self._transport.startWriting()

    def _finish(self) -> None:
        self._sending = False
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()


@implementer(IPushProducer)
class TlsSender(_Producer):
    """TLS: writes of ``WRITE_BYTES``, as many as the transport takes before it asks to pause.

    Args:
        transport: connected.
        page_cache: keeps the disk out of the reactor.
        outcomes: told of the end, which is when the transport's buffer has drained.
        observer: counts the bytes.
    """

    def __init__(
        self,
        transport: TLSMemoryBIOProtocol,
        page_cache: PageCache,
        outcomes: Outcomes,
        observer: Observer,
    ) -> None:
        super().__init__(page_cache, outcomes, observer)
        self._transport = transport
        self._tcp = cast("Server", transport.transport)
        self._paused = False

    def begin_turn(self) -> None:
        """Nothing to renew: the transport asks to pause after every write."""

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send an answer (see ``Sender``)."""
        self._queue.fill(head, body)
        self.body_bytes = -len(head)
        self._sending = True
        self._paused = False
        self._transport.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        return self._pump()

    def pauseProducing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The transport's buffer has drained."""
        self._paused = False
        super().resumeProducing()

    def _send_on(self) -> bool:
        while self._queue and not self._paused and self._sending:
            self._write_some()
        if self._queue or self._paused or not self._sending:
            return False
        self._sending = False
        self._transport.unregisterProducer()
        return True

    def _write_some(self) -> None:
        """One write: as many extents as fill it, or as the page cache holds."""
        if self._tcp.disconnecting:  # the client has ended TLS, which then throws writes away
            raise ConnectionError
        pieces: list[bytes | memoryview] = []
        room = WRITE_BYTES
        try:
            while room and self._queue:
                data = self._bytes_of(self._queue.next(room)[0])
                pieces.append(data)
                self._queue.advance(len(data))
                room -= len(data)
        except _NeedsDisk:
            if not pieces:
                raise
        written = b"".join(pieces)
        self.body_bytes += len(written)
        self._transport.write(written)
        self._observer.bytes_sent("tls", len(written))

    def _bytes_of(self, extent: Extent) -> bytes | memoryview:
        if isinstance(extent, FileExtent):
            data = self._page_cache.read(extent.file, extent.offset, extent.length)
            if data is None:
                raise _NeedsDisk(extent)
            if not data:
                raise _ShortReadError
            return data
        return _data(extent)
