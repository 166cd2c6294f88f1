"""Sends an answer on TLS: in pieces, each encrypted when the kernel has room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from OpenSSL import SSL
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.images.extents import FileExtent
from image_service.transport.producer import NeedsDisk, Producer, data_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.protocols.tls import TLSMemoryBIOProtocol

    from image_service.files.page_cache import PageCache
    from image_service.images.extents import Extent
    from image_service.transport.observer import SentBytes
    from image_service.transport.producer import Outcomes
    from image_service.transport.tls_transport import TlsTransport

_RECORD_BYTES = 16 * 1024
PIECE_BYTES = 5 * _RECORD_BYTES
"""What is encrypted at once: whole records, and a range of 64 KiB with its head."""
CROWD = 256
"""With more connections than this, each has small pieces: OpenSSL keeps, for as long as a connection lasts,
the room that its largest piece took."""
CROWD_PIECE_BYTES = _RECORD_BYTES // 2
TURN_BYTES = 1024 * 1024
"""What one connection may send before the others have their turn."""
_SMALLEST_CHARGE = _RECORD_BYTES  # so that a pipeline of small answers ends its turn too
_OVERHEAD_BYTES = 4096  # more than the records' own, and what TLS may have to say before them

# One for all connections: what is put there is encrypted before anyone else has a turn.
_CLEARTEXT = memoryview(bytearray(PIECE_BYTES))


@implementer(IPushProducer)
class TlsSender(Producer):
    """TLS: what an answer consists of is gathered, encrypted and sent piece by piece.

    Twisted's protocol does everything else: handshake, input, alerts, the end. Its ``write`` is not used,
    because it encrypts a record at a time and keeps in memory what the socket does not take.

    Args:
        transport: connected.
        page_cache: keeps the disk out of the reactor.
        outcomes: told of the end, which is when the transport's buffer has drained.
        sent: counts the bytes.
    """

    def __init__(
        self,
        transport: TLSMemoryBIOProtocol,
        page_cache: PageCache,
        outcomes: Outcomes,
        sent: SentBytes,
    ) -> None:
        super().__init__(page_cache, outcomes, sent)
        self._transport = transport
        self._outlet = cast("TlsTransport", transport.transport)
        self._outlet.sender = self
        self._budget = 0

    def begin_turn(self) -> None:
        """Renew what may be sent before the reactor turns."""
        self._budget = TURN_BYTES

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send an answer (see ``Sender``)."""
        self._queue.fill(head, body)
        self.body_bytes = -len(head)
        self._sending = True
        return self._pump()

    def pauseProducing(self) -> None:
        """The transport's buffer is full, which the outlet knows."""

    def resumeProducing(self) -> None:
        """The transport's buffer is empty, and the socket takes more."""
        self._outlet.unblock()
        super().resumeProducing()

    def _send_on(self) -> bool:
        if self._outlet.disconnecting:  # the client has ended TLS, which then encrypts nothing any more
            raise ConnectionError
        # What the kernel has no room for would be kept in memory, for each connection.
        while self._queue and self._budget > 0 and self._outlet.has_room(PIECE_BYTES):
            self._send_piece()
        if self._queue or self._outlet.blocked:
            self._outlet.await_room()
            return False
        self._sending = False
        return True

    def _send_piece(self) -> None:
        crowded = len(self._transport.factory.protocols) > CROWD
        count = self._gather(CROWD_PIECE_BYTES if crowded else PIECE_BYTES)
        tls = self._transport.getHandle()
        try:
            tls.sendall(_CLEARTEXT[:count])
        except SSL.Error:
            raise ConnectionError from None
        self._outlet.write(tls.bio_read(count + _OVERHEAD_BYTES))
        self.body_bytes += count
        self._budget -= max(count, _SMALLEST_CHARGE)
        self._sent.tls += count

    def _gather(self, limit: int) -> int:
        """Put together what comes next: as many extents as fill it, or as the page cache holds."""
        count = 0
        try:
            while self._queue and count < limit:
                count += self._copy_next(count, limit)
        except NeedsDisk:
            if not count:
                raise
        return count

    def _copy_next(self, start: int, limit: int) -> int:
        extent, _ = self._queue.next(limit - start)
        room = _CLEARTEXT[start : start + extent.length]
        if isinstance(extent, FileExtent):
            count = self._read_into(room, extent)
        else:
            room[:] = data_of(extent)
            count = extent.length
        self._queue.advance(count)
        return count
