"""Sends an answer on plain TCP: what lies in files by sendfile, the rest straight to the socket."""

from __future__ import annotations

import math
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from image_service.files.base_file import ShortReadError
from image_service.images.extents import FileExtent
from image_service.transport.listeners import UNSENT_BYTES
from image_service.transport.producer import NeedsDisk, Producer, data_of
from image_service.transport.progress import is_connected
from image_service.transport.sendfile_threads import LANE_BYTES, WORTHWHILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorTime
    from twisted.internet.tcp import Server

    from image_service.files.page_cache import PageCache
    from image_service.images.extents import Extent
    from image_service.transport.observer import SentBytes
    from image_service.transport.producer import Outcomes
    from image_service.transport.sendfile_threads import SendfileThreads

TURN_BYTES = 4 * 1024 * 1024
"""What one connection may send before the others have their turn."""
QUICK_SECONDS = 1 / 8
"""Who takes half of ``UNSENT_BYTES`` in this time is quick: it reads a MiB a second, or more."""
COPY_BYTES = 16 * 1024
"""Up to here one copy and one system call cost less than a probe and two system calls."""
_LONG_AGO = -math.inf
_SMALLEST_CHARGE = 16 * 1024  # so that a pipeline of small answers ends its turn too
# One for all connections: what is put there is sent before anyone else has a turn.
_COPIED = memoryview(bytearray(COPY_BYTES))


@implementer(IPushProducer)
class SendfileSender(Producer):
    """Plain TCP: file extents by sendfile, everything else straight to the socket.

    Nothing is ever written through the transport, whose own buffer thus stays empty; the transport only
    tells when the socket is writable again.

    A client that is quick gets whatever the kernel's buffer takes, a few MiB, and the reactor hears of it
    again when nearly all of that is gone. One that has taken all of it as quickly is sent the rest in a lane,
    if there is one free. One that is slow, or not known yet, holds ``UNSENT_BYTES``.

    Args:
        transport: connected, without data of its own to send.
        page_cache: keeps the disk out of the reactor.
        outcomes: told of the end.
        sent: counts the bytes.
        lanes: for quick clients.
        clock: the reactor's.
    """

    __slots__ = (
        "_budget",
        "_clock",
        "_lanes",
        "_paused_at",
        "_registered",
        "_roomy",
        "_socket",
        "_transport",
        "_was_roomy",
    )

    def __init__(  # noqa: PLR0913 - what it sends by, and whom it tells
        self,
        transport: Server,
        page_cache: PageCache,
        outcomes: Outcomes,
        sent: SentBytes,
        *,
        lanes: SendfileThreads,
        clock: IReactorTime,
    ) -> None:
        super().__init__(page_cache, outcomes, sent)
        self._lanes = lanes
        self._transport = transport
        self._clock = clock
        self._socket: socket.socket = transport.getHandle()
        self._budget = 0
        self._registered = False
        self._roomy = False
        self._was_roomy = False
        self._paused_at = _LONG_AGO

    def begin_turn(self) -> None:
        """Renew what may be sent before the reactor turns."""
        self._budget = TURN_BYTES

    def send(self, head: bytes, body: Sequence[Extent]) -> bool:
        """Send an answer (see ``Sender``)."""
        self.body_bytes = -len(head)
        if len(body) == 1 and body[0].length <= self._budget and self._send_at_once(head, body[0]):
            return True
        self._queue.fill(head, body)
        self._queue.advance(len(head) + self.body_bytes)
        self._sending = True
        return self._pump()

    def _send_at_once(self, head: bytes, extent: Extent) -> bool:
        """Send an answer as ranges mostly are, of which the queue need not know.

        Returns:
            False: not all of it went out; whoever goes on with the rest finds out why.
        """
        try:
            if extent.length <= COPY_BYTES:
                self._send_bytes(head + self._copy(extent))
            elif isinstance(extent, FileExtent) and self._send_bytes(head, socket.MSG_MORE) == len(head):
                self._send_file(extent, self._present(extent))
        except (OSError, NeedsDisk):
            return False
        return self.body_bytes == extent.length

    def _copy(self, extent: Extent) -> bytes | memoryview:
        """Give a small extent's bytes, or as many as are present; good until the next one is copied."""
        if not isinstance(extent, FileExtent):
            return data_of(extent)
        room = _COPIED[: extent.length]
        return room[: self._read_into(room, extent)]

    def pauseProducing(self) -> None:
        """The transport never says so: nothing is written through it."""

    def resumeProducing(self) -> None:
        """The socket takes more."""
        if self._clock.seconds() - self._paused_at < QUICK_SECONDS:
            if not self._roomy:
                self._roomy = True
                self._limit_unsent(TURN_BYTES)
            if self._was_roomy and self._enter_lane():
                return
        super().resumeProducing()

    def _enter_lane(self) -> bool:
        """Have what comes next sent in a lane; False: it is not worth it, or none is free."""
        if self._waiting is not None or not self._queue:
            return False
        extent, _ = self._queue.next(LANE_BYTES)
        if not isinstance(extent, FileExtent) or extent.file.residency or extent.length < WORTHWHILE_BYTES:
            return False
        sending = self._lanes.send(self._socket, extent)
        if sending is not None:
            self._wait_for(sending.addCallback(self._sent_in_lane, extent.length))
        return sending is not None

    def _sent_in_lane(self, count: int, wanted: int) -> None:
        self._sent.sendfile += count
        self.body_bytes += count
        self._queue.advance(count)
        if count == wanted:
            self._paused_at = self._clock.seconds()
        else:
            self._paused_at = _LONG_AGO
            self._hold_little()

    def _bring(self, extent: FileExtent) -> None:
        """Bring what is not present, or have it sent where that may be waited for."""
        if not (self._roomy and self._enter_lane()):
            super()._bring(extent)

    def _send_on(self) -> bool:
        try:
            while self._queue and self._budget > 0 and self._send_some():
                pass
        except BlockingIOError:
            pass
        except ShortReadError:
            raise
        except OSError:  # of the disk or of the network: ETIMEDOUT, say, may come of either
            if not is_connected(self._socket):
                raise ConnectionError from None
            raise
        if self._queue:
            self._await_writable()
            return False
        self._finish()
        return True

    def _send_some(self) -> bool:
        """Send what comes next; False: the socket had no room for all of it."""
        extent, more = self._queue.next(self._budget)
        if isinstance(extent, FileExtent):
            wanted = self._present(extent)
            count = self._send_file(extent, wanted)
        else:
            data = data_of(extent)
            wanted = len(data)
            more = more or wanted < extent.length
            count = self._send_bytes(data, socket.MSG_MORE if more else 0)
        self._queue.advance(count)
        return count == wanted

    def _send_bytes(self, data: bytes | memoryview, flags: int = 0) -> int:
        count = self._socket.send(data, flags)
        self._sent.copy += count
        self._took(count)
        return count

    def _send_file(self, extent: FileExtent, count: int) -> int:
        count = os.sendfile(self._socket.fileno(), extent.file.descriptor, extent.offset, count)
        if count == 0:
            raise ShortReadError(extent.offset, extent.file.size)
        self._sent.sendfile += count
        self._took(count)
        return count

    def _took(self, count: int) -> None:
        """Note what the socket took."""
        self.body_bytes += count
        self._budget -= max(count, _SMALLEST_CHARGE)

    def _await_writable(self) -> None:
        self._paused_at = self._clock.seconds()
        self._was_roomy = self._roomy
        self._hold_little()
        if not self._registered:
            self._registered = True
            self._transport.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        # What the transport itself does after a write that filled its buffer: resume once writable.
        self._transport.producerPaused = True
        self._transport.startWriting()

    def _hold_little(self) -> None:
        """Also has the kernel tell that there is room again when little is left to send."""
        if self._roomy:
            self._roomy = False
            self._limit_unsent(UNSENT_BYTES)

    def _limit_unsent(self, count: int) -> None:
        with suppress(OSError):  # the connection may be gone, which sending finds out
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)

    def _finish(self) -> None:
        self._sending = False
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()
