"""The way out below TLS: straight to the socket; what that refuses goes into the transport's buffer."""

from __future__ import annotations

import socket
import sys
from fcntl import ioctl
from typing import TYPE_CHECKING, Any

from image_service.transport.listeners import UNSENT_BYTES

if TYPE_CHECKING:
    from twisted.internet.tcp import Server

    from image_service.transport.tls_sender import TlsSender

_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes that TCP has not sent yet


class TlsTransport:
    """Stands between TLS and its transport.

    All records of a connection come this way, those of answers and those that TLS sends by itself (the
    handshake, tickets, key updates, alerts), so that none can overtake another. Whatever else TLS asks of
    its transport is passed on.

    Args:
        tcp: connected.
    """

    sender: TlsSender
    """Told to resume when all is sent and the socket takes more; it then has to ``unblock``."""

    def __init__(self, tcp: Server) -> None:
        self._tcp = tcp
        self._socket: socket.socket = tcp.getHandle()
        # So that the kernel means by room what we mean, and does not tell of it where we see none.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.blocked = False
        """Whether the sender has still to be told to resume."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._tcp, name)

    def write(self, data: bytes) -> None:
        """Send records.

        Args:
            data: what the socket does not take is kept.
        """
        if not self._tcp.connected:
            return
        if not self.blocked:
            count = self._send(data)
            if count == len(data):
                return
            data = data[count:]
            self.await_room()
        self._tcp.write(data)

    def _send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except OSError:  # it is full, or the connection is broken, which the transport will find out
            return 0

    def has_room(self, count: int) -> bool:
        """Whether the kernel takes more, as far as the client has taken what it holds.

        Args:
            count: bytes.
        """
        if self.blocked:
            return False
        unsent = int.from_bytes(ioctl(self._socket, _SIOCOUTQNSD, bytes(4)), sys.byteorder)
        return unsent + count <= UNSENT_BYTES

    def await_room(self) -> None:
        """Have the sender told to resume."""
        if not self.blocked:
            self.blocked = True
            self._tcp.registerProducer(self.sender, True)  # noqa: FBT003 - Twisted's signature
        # What the transport itself does after a write that filled its buffer: resume once writable.
        self._tcp.producerPaused = True
        self._tcp.startWriting()

    def unblock(self) -> None:
        """Send straight to the socket again."""
        if self.blocked:
            self.blocked = False
            self._tcp.unregisterProducer()
