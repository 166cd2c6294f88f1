"""Sends an answer on TLS: by writes, as many as the transport takes before it asks to pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.http.producer import NeedsDisk, Producer, ShortReadError, data_of
from image_service.images.extents import FileExtent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.tcp import Server
    from twisted.protocols.tls import TLSMemoryBIOProtocol

    from image_service.http.observer import Observer
    from image_service.http.page_cache import PageCache
    from image_service.http.producer import Outcomes
    from image_service.images.extents import Extent

WRITE_BYTES = 256 * 1024
"""What one write to TLS holds."""


@implementer(IPushProducer)
class TlsSender(Producer):
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
        except NeedsDisk:
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
                raise NeedsDisk(extent)
            if not data:
                raise ShortReadError
            return data
        return data_of(extent)
