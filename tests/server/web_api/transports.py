"""A transport in memory, for requests without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from twisted.internet.protocol import Protocol


class RecordingTransport(StringTransport):
    """Records written bytes, and the abort of the connection."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.aborted = False

    @property
    def written(self) -> bytes:
        return bytes(self.value())  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        self.aborted = True

    def lose(self, protocol: Protocol) -> None:
        """End the connection, as a client that disconnects."""
        protocol.connectionLost(Failure(ConnectionLost()))
