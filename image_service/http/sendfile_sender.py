"""Sends an answer on plain TCP: what lies in files by sendfile, the rest straight to the socket."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.http.producer import NeedsDisk, Producer, ShortReadError, data_of
from image_service.images.extents import FileExtent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.tcp import Server

    from image_service.http.observer import Observer
    from image_service.http.page_cache import PageCache
    from image_service.http.producer import Outcomes
    from image_service.images.extents import Extent

TURN_BYTES = 4 * 1024 * 1024
"""What one connection may send before the others have their turn."""
SENDFILE_BYTES = 1024 * 1024
"""What one sendfile is asked for: above it there is nothing to gain, below it system calls cost."""
COPY_BYTES = 16 * 1024
"""Up to here one copy and one system call cost less than a probe and two system calls."""
_SMALLEST_CHARGE = 16 * 1024  # so that a pipeline of small answers ends its turn too


@implementer(IPushProducer)
class SendfileSender(Producer):
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
            return bytes(data_of(extent))
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
            count = self._socket.send(data_of(extent), socket.MSG_MORE if more else 0)
            self._observer.bytes_sent("copy", count)
        self._queue.advance(count)
        self.body_bytes += count
        self._budget -= max(count, _SMALLEST_CHARGE)

    def _send_file(self, extent: FileExtent) -> int:
        if not self._page_cache.holds(extent.file, extent.offset, extent.length):
            raise NeedsDisk(extent)
        descriptor = self._socket.fileno()
        count = os.sendfile(descriptor, extent.file.descriptor, extent.offset, extent.length)
        if count == 0:
            raise ShortReadError
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
