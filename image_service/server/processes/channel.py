"""The control channel between the supervisor and a serving process: messages of a word and a value, as JSON.

to the serving process    ``adopt``   accept the connections of the serving process with this number too
                 ``release`` stop doing so
                 ``collect`` send your metrics
                 ``activity`` send the reads of clients and the failed requests since the last collection
                 ``page``    the page of metrics that was requested; null: it could not be rendered
                 ``query``   respond to a query: its number, its name and its arguments
                 ``ping``
                 ``reload``  the contents of files that variables name, by the names of the variables
                 ``stop``    shut down; the number of the signal that stops the service
from it          ``serving`` connections are accepted
                 ``metrics`` the response to ``collect``
                 ``activity`` the response to ``activity``
                 ``page``    render the page of all serving processes' metrics
                 ``response`` to a query: its number and the value
                 ``pong``    the response to ``ping``
                 ``reloaded`` the response to ``reload``: names of changed files, and a fault; null: none
                 ``status``  a line for the service manager
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import connectionDone
from twisted.protocols.basic import Int32StringReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted.python.failure import Failure

MAX_BYTES = 64 * 1024 * 1024


class Channel(Int32StringReceiver):
    """One end.

    Args:
        handlers: called with the value of each word that is received.
        lost: is called when the other end is closed.
    """

    MAX_LENGTH = MAX_BYTES

    def __init__(
        self, handlers: Mapping[str, Callable[[Any], None]], lost: Callable[[], None] = lambda: None
    ) -> None:
        self._handlers = handlers
        self._lost = lost

    def send(self, word: str, value: object = None) -> None:
        """Send a word, and a value that JSON can represent."""
        self.sendString(json.dumps([word, value]).encode())  # type: ignore[no-untyped-call]

    def stringReceived(self, string: bytes) -> None:
        """Call the handler of a word."""
        word, value = json.loads(string)
        self._handlers[word](value)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report that nothing more will come."""
        super().connectionLost(reason)
        self._lost()
