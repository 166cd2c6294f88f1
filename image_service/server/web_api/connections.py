"""The connections of a web API: their number is limited, and all of them can be aborted.

Those that never sent an authenticated request are aborted first: a client without credentials cannot cut the
connections of others, such as the long polls of workers, which are silent by design.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from twisted.internet.abstract import FileDescriptor
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

from image_service.server.transport.admission.addresses import address_group
from image_service.server.web_api.unsent_bytes import MAX_UNSENT_BYTES, UnsentBytes, unsent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IDelayedCall, IProtocolFactory, IReactorTime, ITCPTransport

MAX_CONNECTIONS = 256
RECEIVED_AT_ONCE = 256 * 1024 - 1
"""Bytes of streamed content. A producer pauses if more are unsent: one block of a download is enough."""
SENT_AT_ONCE = 1024 * 1024
SILENT_SECONDS = 5.0
"""After which a new connection is aborted that has sent nothing."""
_ADDRESS_PART = 4  # an address has at most a quarter of the connections without an authenticated request


class TrackedConnection(ProtocolWrapper):
    """Reports to its factory what it receives and sends."""

    factory: LimitedFactory
    transport: ITCPTransport
    group = ""
    """The client's address, as `address_group` returns it; "": a Unix socket."""
    timer: IDelayedCall | None = None
    """Aborts it while it has sent nothing."""
    is_answered = False
    """A whole request of it is being answered, which takes as long as the service needs."""
    is_aborted = False
    """It ends in the reactor's next turn; until then replies to further requests may be written."""

    def unsent_bytes(self) -> int:
        """Return the bytes in memory that the client has not taken."""
        return unsent_bytes(self.transport)

    def dataReceived(self, data: bytes) -> None:
        """Pass bytes to the wrapped protocol."""
        self.stop_timer()
        self.factory.record_activity(self)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def write(self, data: bytes) -> None:
        """Send bytes of the wrapped protocol."""
        if not self.is_aborted:
            super().write(data)  # type: ignore[no-untyped-call]
            self.factory.record_write(self)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send bytes of the wrapped protocol."""
        if not self.is_aborted:
            super().writeSequence(data)  # type: ignore[no-untyped-call]
            self.factory.record_write(self)

    def enlarge_buffers(self) -> None:
        """Receive and send in fewer, larger pieces: each waits for a turn of the reactor."""
        socket = self.transport
        if isinstance(socket, FileDescriptor):
            socket.bufferSize, socket.SEND_LIMIT = RECEIVED_AT_ONCE, SENT_AT_ONCE

    def stop_timer(self) -> None:
        """Let it be silent."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LimitedFactory(WrappingFactory[TrackedConnection]):
    """Limits the connections of a factory; for one more, another one is aborted.

    First the oldest one that never sent an authenticated request, whatever it sends; then the one with the
    oldest activity. Of an address with a quarter of all connections without such a request, it is its oldest.
    One whose request is being answered, as a probe's, is the last of its kind.
    The bytes of replies in memory are limited, too: see `UnsentBytes`.
    """

    protocol = TrackedConnection

    def __init__(
        self,
        factory: IProtocolFactory,
        clock: IReactorTime,
        max_connections: int = MAX_CONNECTIONS,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
    ) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.noisy = False
        self._clock = clock
        self._max_connections = max_connections
        self._max_of_address = max(1, max_connections // _ADDRESS_PART)
        # Aborted ones are removed at once, not when they have ended.
        self._unknown: dict[TrackedConnection, None] = {}  # the oldest first
        self._unknown_of: defaultdict[str, dict[TrackedConnection, None]] = defaultdict(dict)  # by group
        self._known: dict[TrackedConnection, None] = {}  # in the order of their latest activity
        self._unsent = UnsentBytes(self._abort, max_unsent_bytes)

    def registerProtocol(self, p: TrackedConnection) -> None:
        """Add a connection."""
        host = getattr(p.transport.getPeer(), "host", "")
        p.group = address_group(host) if host else ""
        of_address = self._unknown_of.get(p.group, {})
        if p.group and len(of_address) >= self._max_of_address:
            self._abort(_oldest(of_address))
        elif len(self._unknown) + len(self._known) >= self._max_connections:
            self._abort(_oldest(self._unknown or self._known))
        self._unknown[p] = self._unknown_of[p.group][p] = None
        p.timer = self._clock.callLater(SILENT_SECONDS, self._abort_silent, p)

    def record_authenticated(self, connection: TrackedConnection) -> None:
        """Record that a request of a connection was authenticated, or needs no credentials here."""
        if self._forget_unknown(connection):
            self._known[connection] = None

    def record_activity(self, connection: TrackedConnection) -> None:
        """Make a known connection the last one to be aborted."""
        if connection in self._known:
            del self._known[connection]
            self._known[connection] = None

    def record_write(self, connection: TrackedConnection) -> None:
        """Make a known connection the last one to be aborted, and limit the bytes in memory."""
        self.record_activity(connection)
        self._unsent.record_write(connection)

    def unregisterProtocol(self, p: TrackedConnection) -> None:
        """Remove a connection that has ended."""
        p.stop_timer()
        self._unsent.remove(p)
        self._forget_unknown(p)
        self._known.pop(p, None)

    def abort_all(self) -> None:
        """Abort every connection."""
        for connection in (*self._unknown, *self._known):
            self._abort(connection)

    def _abort_silent(self, connection: TrackedConnection) -> None:
        connection.timer = None
        self._abort(connection)

    def _abort(self, connection: TrackedConnection) -> None:
        self.unregisterProtocol(connection)
        connection.is_aborted = True
        connection.transport.abortConnection()

    def _forget_unknown(self, connection: TrackedConnection) -> bool:
        """Remove a connection from those without an authenticated request; False: it is none of them."""
        if connection not in self._unknown:
            return False
        del self._unknown[connection]
        of_address = self._unknown_of[connection.group]
        del of_address[connection]
        if not of_address:
            del self._unknown_of[connection.group]
        return True


def _oldest(connections: Iterable[TrackedConnection]) -> TrackedConnection:
    """Return the first connection without an answer that is being made or sent; else the first one."""
    idle = (each for each in connections if not (each.is_answered or each.unsent_bytes()))
    return next(idle, None) or next(iter(connections))


def record_authenticated(transport: object) -> None:
    """Record that a request was authenticated that has come over a transport, perhaps above TLS."""
    if (connection := find_connection(transport)) is not None:
        connection.factory.record_authenticated(connection)


def find_connection(transport: object) -> TrackedConnection | None:
    """Return the connection of a transport, perhaps above TLS; None: it is not tracked."""
    while transport is not None and not isinstance(transport, TrackedConnection):
        transport = getattr(transport, "transport", None)
    return transport
