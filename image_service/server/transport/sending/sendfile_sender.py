"""Sends a response on plain TCP: file extents by sendfile, the rest straight to the socket."""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.common.files.local_file import ShortReadError
from image_service.core.extents import FileExtent, Literal
from image_service.server.transport.sending.sender import NotResidentError, Sender, data_of
from image_service.server.transport.sending.sendfile_threads import MAX_BYTES, MIN_BYTES
from image_service.server.transport.sending.tcp import UNSENT_BYTES, is_connected, set_unsent_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorTime
    from twisted.internet.tcp import Server

    from image_service.common.files.page_cache import PageCache
    from image_service.core.extents import Extent
    from image_service.server.transport.sending.observer import SentBytes
    from image_service.server.transport.sending.sender import SenderCallbacks
    from image_service.server.transport.sending.sendfile_threads import SendfileThreads

TURN_BYTES = 4 * 1024 * 1024
"""One connection may send so many bytes before the reactor turns; also the limit of a fast client's unsent
bytes."""
FAST_SECONDS = 1 / 8
"""A client that takes half of `UNSENT_BYTES` in this time is fast: it reads a MiB per second, or more."""
COPY_BYTES = 16 * 1024
"""Up to here one copy and one system call cost less than a residency check and two system calls."""
_NEVER = -math.inf
# A bit of what each call sends is always set, so that a pipeline of small responses ends its turn too.
_LEAST_CHARGE = 16 * 1024
# One for all connections: its content is sent before another connection has its turn.
_COPY_BUFFER = memoryview(bytearray(COPY_BYTES))


@implementer(IPushProducer)
class SendfileSender(Sender):
    """Sends a response on plain TCP.

    Nothing is written through the transport, whose own buffer thus stays empty; it only reports when the
    socket is writable again.

    The kernel buffers up to `TURN_BYTES` for a fast client, and reports the socket as writable when nearly
    all of that is gone. If the client has taken all of it as fast, a sendfile thread sends the rest, if one
    is free. For a slow client, or one whose speed is not known yet, the kernel buffers `UNSENT_BYTES`.

    Args (see `Sender` for the others):
        transport: connected, without data of its own to send.
        threads: for fast clients.
    """

    __slots__ = (
        "_budget",
        "_large_window",
        "_paused_at",
        "_registered",
        "_socket",
        "_threads",
        "_transport",
        "_was_large",
    )

    def __init__(  # noqa: PLR0913 - what it sends by, and what it reports to
        self,
        transport: Server,
        page_cache: PageCache,
        callbacks: SenderCallbacks,
        sent: SentBytes,
        *,
        threads: SendfileThreads,
        clock: IReactorTime,
    ) -> None:
        super().__init__(page_cache, callbacks, sent, clock)
        self._threads = threads
        self._transport = transport
        self._socket: socket.socket = transport.getHandle()
        self._budget = 0
        self._registered = False
        self._large_window = False  # the kernel buffers TURN_BYTES
        self._was_large = False  # it did before the latest pause
        self._paused_at = _NEVER

    def begin_turn(self) -> None:
        """See `Sender`."""
        self._budget = TURN_BYTES

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """See `Sender`."""
        self.body_bytes = -len(head)
        if not body:
            with suppress(OSError):  # sending the rest reports the reason
                if self._budget > 0 and self._send_bytes(head) == len(head):
                    return True
        elif len(body) == 1 and body[0].length <= self._budget and self._send_directly(head, body[0]):
            return True
        self._queue.fill(head, body)
        self._queue.advance(len(head) + self.body_bytes)
        self._sending = True
        return self._continue()

    def _send_directly(self, head: bytes, extent: Extent) -> bool:
        """Send a response of one extent without the queue.

        Returns:
            False if not all of it was sent; sending the rest reports the reason.
        """
        try:
            if extent.length <= COPY_BYTES:
                if isinstance(extent, FileExtent):
                    buffer = _COPY_BUFFER[: extent.length]
                    count = self._read_into(buffer, extent)
                    data: bytes | memoryview = buffer if count == extent.length else buffer[:count]
                else:
                    data = data_of(extent)
                self._send_bytes(head + data)
            elif isinstance(extent, FileExtent):
                if self._send_bytes(head, socket.MSG_MORE) == len(head):
                    self._send_file(extent, self._resident_bytes(extent))
            elif isinstance(extent, Literal):
                self._send_with_head(head, extent.data)
        except (OSError, NotResidentError):
            return False
        return self.body_bytes == extent.length

    def pauseProducing(self) -> None:
        """Never called: nothing is written through the transport."""

    def resumeProducing(self) -> None:
        """The socket accepts more."""
        if self._clock.seconds() - self._paused_at < FAST_SECONDS:
            if not self._large_window:
                self._large_window = True
                self._limit_unsent(TURN_BYTES)
            if self._was_large and self._send_in_thread():
                return
        super().resumeProducing()

    def _send_in_thread(self) -> bool:
        """Let a thread send the next bytes; False if it is not worth it, or none is free."""
        if self._waiting is not None or not self._queue:
            return False
        extent, _ = self._queue.peek(MAX_BYTES)
        if not isinstance(extent, FileExtent):
            return False
        file, release = extent.file, None
        if file.residency is not None:
            extent = extent.slice(0, file.residency.resident_bytes(file, extent.offset, extent.length))
        if extent.length < MIN_BYTES:
            return False
        if file.residency is not None:
            release = file.residency.try_hold(file, extent.offset, extent.length)
            if release is None:
                return False
        sending = self._threads.send(self._socket, extent, release)
        if sending is not None:
            self._wait_for(sending.addCallback(self._sent_in_thread, extent.length))
        elif release is not None:
            release()
        return sending is not None

    def _sent_in_thread(self, count: int, expected: int) -> None:
        self._sent.sendfile += count
        self.body_bytes += count
        self._queue.advance(count)
        if count == expected:
            self._paused_at = self._clock.seconds()
        else:
            self._paused_at = _NEVER
            self._shrink_window()

    def _prefetch(self, extent: FileExtent) -> None:
        """Wait until the next bytes are resident, or let a thread send them, which may wait for the disk."""
        if not (self._large_window and self._send_in_thread()):
            super()._prefetch(extent)

    def _send_queue(self) -> bool:
        try:
            while self._queue and self._budget > 0 and self._send_next():
                pass
        except BlockingIOError:
            pass
        except ShortReadError:
            raise
        except OSError:  # of the disk or of the network: ETIMEDOUT, say, may come of either
            if not is_connected(self._socket):
                raise ConnectionError from None
            raise
        if self._queue:
            self._await_writable()
            return False
        self._sending = False
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()
        return True

    def _send_next(self) -> bool:
        """Send the next bytes; False if the socket did not accept all of it."""
        extent, more = self._queue.peek(self._budget)
        if isinstance(extent, FileExtent):
            expected = self._resident_bytes(extent)
            count = self._send_file(extent, expected)
        else:
            data = data_of(extent)
            expected = len(data)
            more = more or expected < extent.length
            count = self._send_bytes(data, socket.MSG_MORE if more else 0)
        self._queue.advance(count)
        return count == expected

    def _send_bytes(self, data: bytes | memoryview, flags: int = 0) -> int:
        count = self._socket.send(data, flags)
        self._sent.copy += count
        self.body_bytes += count
        self._budget -= count | _LEAST_CHARGE
        return count

    def _send_with_head(self, head: bytes, data: bytes | memoryview) -> None:
        count = self._socket.sendmsg((head, data))
        self._sent.copy += count
        self.body_bytes += count
        self._budget -= count | _LEAST_CHARGE

    def _send_file(self, extent: FileExtent, count: int) -> int:
        count = os.sendfile(self._socket.fileno(), extent.file.descriptor, extent.offset, count)
        if count == 0:
            raise ShortReadError(extent.offset, extent.file.size)
        self._sent.sendfile += count
        self.body_bytes += count
        self._budget -= count | _LEAST_CHARGE
        return count

    def _await_writable(self) -> None:
        self._paused_at = self._clock.seconds()
        self._was_large = self._large_window
        self._shrink_window()
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        # The transport itself does so after a write that filled its buffer: resume once writable.
        self._transport.producerPaused = True
        self._transport.startWriting()

    def _shrink_window(self) -> None:
        """Limit the bytes that the kernel buffers; it reports the socket as writable when little is left."""
        if self._large_window:
            self._large_window = False
            self._limit_unsent(UNSENT_BYTES)

    def _limit_unsent(self, count: int) -> None:
        with suppress(OSError):  # the connection may be gone, which sending finds out
            set_unsent_limit(self._socket, count)
