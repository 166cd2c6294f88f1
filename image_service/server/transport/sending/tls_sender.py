"""Sends a response on TLS: in pieces, each encrypted when the kernel has space for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from OpenSSL import SSL
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.core.extents import FileExtent
from image_service.server.transport.sending.sender import NotResidentError, Sender, data_of
from image_service.server.transport.sending.tcp import UNSENT_BYTES, set_unsent_limit, unsent_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorTime
    from twisted.internet.tcp import Server
    from twisted.protocols.tls import TLSMemoryBIOProtocol

    from image_service.common.files.page_cache import PageCache
    from image_service.core.extents import Extent
    from image_service.server.transport.sending.observer import SentBytes
    from image_service.server.transport.sending.sender import SenderCallbacks

_RECORD_BYTES = 16 * 1024
PIECE_BYTES = 5 * _RECORD_BYTES
"""The bytes that are encrypted at once: whole records, and a range of 64 KiB with its head."""
MANY_CONNECTIONS = 256
"""Beyond it pieces are small: OpenSSL keeps the buffer of the largest piece while a connection lasts."""
SMALL_PIECE_BYTES = _RECORD_BYTES // 2
TURN_BYTES = 1024 * 1024
"""The bytes that one connection may send before the reactor turns."""
_MIN_CHARGE = _RECORD_BYTES  # so that a pipeline of small responses ends its turn too
_OVERHEAD_BYTES = 4096  # more than the records' own, and those that TLS may have to send before them

# One for all connections: its content is encrypted before another connection has its turn.
_CLEARTEXT = memoryview(bytearray(PIECE_BYTES))


class TlsTransport:
    """The transport below TLS: straight to the socket; bytes that it refuses go into Twisted's buffer.

    All records of a connection pass through it, those of responses and those that TLS sends by itself
    (handshake, tickets, key updates, alerts), so that none overtakes another. All other calls go to the TCP
    transport.

    Args:
        tcp: connected.
    """

    sender: TlsSender
    """Resumed when everything is sent and the socket accepts more; it then calls `unblock`."""

    def __init__(self, tcp: Server) -> None:
        self._tcp = tcp
        self._socket: socket.socket = tcp.getHandle()
        # The kernel then reports the socket as writable exactly when `has_space` agrees.
        set_unsent_limit(self._socket, UNSENT_BYTES)
        self.is_blocked = False
        """True until the sender is resumed."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._tcp, name)

    def write(self, data: bytes) -> None:
        """Send records; the transport keeps bytes that the socket does not accept."""
        if not self._tcp.connected:
            return
        if not self.is_blocked:
            try:
                count = self._socket.send(data)
            except OSError:  # it is full, or the connection is broken, which the transport will find out
                count = 0
            if count == len(data):
                return
            data = data[count:]
            self.await_writable()
        self._tcp.write(data)

    def has_space(self, count: int) -> bool:
        """Return True if the kernel may take `count` bytes more within `UNSENT_BYTES`."""
        return not self.is_blocked and unsent_bytes(self._socket) + count <= UNSENT_BYTES

    def await_writable(self) -> None:
        """Resume the sender once the socket is writable and the transport's buffer empty."""
        if not self.is_blocked:
            self.is_blocked = True
            self._tcp.registerProducer(self.sender, True)  # noqa: FBT003 - Twisted's signature
        # The transport itself does so after a write that filled its buffer: resume once writable.
        self._tcp.producerPaused = True
        self._tcp.startWriting()

    def unblock(self) -> None:
        """Send straight to the socket again."""
        if self.is_blocked:
            self.is_blocked = False
            self._tcp.unregisterProducer()


@implementer(IPushProducer)
class TlsSender(Sender):
    """Sends a response on TLS, encrypted piece by piece.

    Twisted's protocol does everything else: handshake, input, alerts, the end. Its `write` is not used,
    because it encrypts a record at a time and keeps in memory bytes that the socket does not accept.

    A response is sent when the transport's buffer is empty.
    """

    def __init__(
        self,
        transport: TLSMemoryBIOProtocol,
        page_cache: PageCache,
        callbacks: SenderCallbacks,
        sent: SentBytes,
        *,
        clock: IReactorTime,
    ) -> None:
        super().__init__(page_cache, callbacks, sent, clock)
        self._tls = transport
        self._transport = cast("TlsTransport", transport.transport)
        self._transport.sender = self
        self._budget = 0

    def begin_turn(self) -> None:
        """See `Sender`."""
        self._budget = TURN_BYTES

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """See `Sender`."""
        self._queue.fill(head, body)
        self.body_bytes = -len(head)
        self._sending = True
        return self._continue()

    def pauseProducing(self) -> None:
        """The transport's buffer is full, which `TlsTransport` knows."""

    def resumeProducing(self) -> None:
        """The transport's buffer is empty, and the socket accepts more."""
        self._transport.unblock()
        super().resumeProducing()

    def _send_queue(self) -> bool:
        if self._transport.disconnecting:  # the client has closed TLS, which then encrypts nothing any more
            raise ConnectionError
        # Bytes that the kernel has no space for would be kept in memory, for each connection.
        while self._queue and self._budget > 0 and self._transport.has_space(PIECE_BYTES):
            self._send_piece()
        if self._queue or self._transport.is_blocked:
            self._transport.await_writable()
            return False
        self._sending = False
        return True

    def _send_piece(self) -> None:
        many = len(self._tls.factory.protocols) > MANY_CONNECTIONS
        count = self._gather(SMALL_PIECE_BYTES if many else PIECE_BYTES)
        tls = self._tls.getHandle()
        try:
            tls.sendall(_CLEARTEXT[:count])
        except SSL.Error:
            raise ConnectionError from None
        self._transport.write(tls.bio_read(count + _OVERHEAD_BYTES))
        self.body_bytes += count
        self._budget -= max(count, _MIN_CHARGE)
        self._sent.tls += count

    def _gather(self, limit: int) -> int:
        """Copy the next bytes into the buffer, as far as it is resident; return the bytes."""
        count = 0
        try:
            while self._queue and count < limit:
                extent, _ = self._queue.peek(limit - count)
                buffer = _CLEARTEXT[count : count + extent.length]
                if isinstance(extent, FileExtent):
                    copied = self._read_into(buffer, extent)
                else:
                    buffer[:] = data_of(extent)
                    copied = extent.length
                self._queue.advance(copied)
                count += copied
        except NotResidentError:
            if not count:
                raise
        return count
