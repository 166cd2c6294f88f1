"""The channel between the supervisor and a worker: a word and a value at a time, as JSON.

to the worker    ``cover``   accept the clients of the place with this number too
                 ``leave``   do so no more
                 ``count``   tell what you have counted
                 ``page``    the page of metrics that was asked for; null: it could not be made
                 ``ping``    do you still live?
                 ``end``     the number of the signal that ends the service
from it          ``serving`` clients are accepted
                 ``counted`` what was asked for by ``count``
                 ``page``    make the page of all workers' metrics
                 ``pong``    yes, to ``ping``
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
        hears: what is done at each word, with its value.
        lost: is called when the other end is gone.
    """

    MAX_LENGTH = MAX_BYTES

    def __init__(
        self, hears: Mapping[str, Callable[[Any], None]], lost: Callable[[], None] = lambda: None
    ) -> None:
        self._hears = hears
        self._lost = lost

    def say(self, word: str, value: object = None) -> None:
        """Send a word.

        Args:
            word: one that the other end knows.
            value: what JSON can hold.
        """
        self.sendString(json.dumps([word, value]).encode())  # type: ignore[no-untyped-call]

    def stringReceived(self, string: bytes) -> None:
        """Do what a word says."""
        word, value = json.loads(string)
        self._hears[word](value)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell that nothing more will come."""
        super().connectionLost(reason)
        self._lost()
