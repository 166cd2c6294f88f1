"""The content of a response that is read while it is sent, at the speed of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from image_service.core.errors import ImageServiceError
from image_service.server.web_api.connections import find_connection

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime, ITCPTransport
    from twisted.python.failure import Failure
    from twisted.web.server import Request

    from image_service.server.web_api.messages import ContentStream

STALL_SECONDS = 120.0
"""A client that reads nothing for this time is disconnected."""


@implementer(IPushProducer)
class ContentSender:
    """Sends content, of which it holds one piece at a time, and finishes the request.

    Args:
        request: its head is set.
        clock: for the limit of a client that reads nothing.
    """

    _log = Logger()

    def __init__(self, request: Request, stream: ContentStream, clock: IReactorTime) -> None:
        self._request = request
        self._stream = stream
        self._clock = clock
        self._resumed: Deferred[None] | None = None
        self._stall: IDelayedCall | None = None

    def start(self) -> None:
        """Start to send."""
        if (connection := find_connection(self._request.channel.transport)) is not None:
            connection.enlarge_buffers()
        sending = Deferred.fromCoroutine(self._send())
        self._request.notifyFinish().addErrback(lambda _: sending.cancel())
        sending.addErrback(self._abort)
        sending.addBoth(lambda _: self._stream.close())

    def pauseProducing(self) -> None:
        """Write no further piece."""
        if self._resumed is None:
            self._resumed = Deferred()
            self._stall = self._clock.callLater(STALL_SECONDS, self._disconnect)

    def resumeProducing(self) -> None:
        """Write again."""
        resumed, self._resumed = self._resumed, None
        self._cancel_stall()
        if resumed is not None:
            resumed.callback(None)

    def stopProducing(self) -> None:
        """Write nothing more: the connection has ended, which cancels the sending, too."""
        self._cancel_stall()

    async def _send(self) -> None:
        self._request.registerProducer(self, streaming=True)
        while await self._write_piece():
            if self._resumed is not None:
                await self._resumed
        self._request.unregisterProducer()
        self._request.finish()

    async def _write_piece(self) -> bool:
        """Write the next piece, and keep nothing of it; False: there is none."""
        piece = await self._stream.read()
        if piece:
            self._request.write(piece)
        return bool(piece)

    def _abort(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        if isinstance(failure.value, ImageServiceError):
            self._log.warn("a response is cut off: {reason}", reason=failure.value.detail)
        else:
            self._log.failure("unexpected error while a response is sent", failure)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._request.channel is not None:  # else the connection has ended
            cast("ITCPTransport", self._request.transport).abortConnection()

    def _cancel_stall(self) -> None:
        if self._stall is not None and self._stall.active():
            self._stall.cancel()
