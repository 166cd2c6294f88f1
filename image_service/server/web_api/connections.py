"""The connections of a web API: their number is limited, and all of them can be aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IProtocolFactory, ITCPTransport

MAX_CONNECTIONS = 64


class TrackedConnection(ProtocolWrapper):
    """Reports to its factory what it receives and sends."""

    factory: LimitedFactory
    transport: ITCPTransport

    def dataReceived(self, data: bytes) -> None:
        """Pass bytes to the wrapped protocol."""
        self.factory.record_activity(self)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def write(self, data: bytes) -> None:
        """Send bytes of the wrapped protocol."""
        self.factory.record_activity(self)
        super().write(data)  # type: ignore[no-untyped-call]

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send bytes of the wrapped protocol."""
        self.factory.record_activity(self)
        super().writeSequence(data)  # type: ignore[no-untyped-call]


class LimitedFactory(WrappingFactory[TrackedConnection]):
    """Limits the connections of a factory; for one more, the one with the oldest activity is aborted.

    Idle clients can thus neither use up the descriptors of the process, nor keep others away.
    """

    protocol = TrackedConnection

    def __init__(self, factory: IProtocolFactory, max_connections: int = MAX_CONNECTIONS) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.noisy = False
        self._max_connections = max_connections
        # In the order of their latest activity. Aborted ones are removed at once, not when they have ended.
        self._connections: dict[TrackedConnection, None] = {}

    def registerProtocol(self, p: TrackedConnection) -> None:
        """Add a connection."""
        if len(self._connections) >= self._max_connections:
            self._abort(next(iter(self._connections)))
        self._connections[p] = None

    def record_activity(self, connection: TrackedConnection) -> None:
        """Make a connection the last one to be aborted."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def unregisterProtocol(self, p: TrackedConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(p, None)

    def abort_all(self) -> None:
        """Abort every connection."""
        for connection in tuple(self._connections):
            self._abort(connection)

    def _abort(self, connection: TrackedConnection) -> None:
        del self._connections[connection]
        connection.transport.abortConnection()
