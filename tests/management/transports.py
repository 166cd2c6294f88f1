"""A transport in memory, for requests without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from twisted.internet.protocol import Protocol


class RecordingTransport(StringTransport):
    """Keeps what is written, and knows whether the connection was aborted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.aborted = False

    @property
    def written(self) -> bytes:
        return bytes(self.value())  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        self.aborted = True

    def lose(self, protocol: Protocol) -> None:
        """End the connection, as a client does that leaves."""
        protocol.connectionLost(Failure(ConnectionLost()))
