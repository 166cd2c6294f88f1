"""Lanes: a few threads in which sendfile may wait, for a quick client as well as for the disk.

What Python adds to each turn of the reactor is a third of what the kernel takes for the few MiB that the
socket's buffer holds. In a lane the kernel goes on by itself.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool

from image_service.transport.progress import taken_bytes

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorFromThreads
    from twisted.python.failure import Failure
    from twisted.python.threadpool import ThreadPool

    from image_service.images.extents import FileExtent

LANES = 16
LANE_BYTES = 128 * 1024 * 1024
"""What is sent in a lane at a time; it is counted when that has come to its end."""
WORTHWHILE_BYTES = 4 * 1024 * 1024
"""To get into a lane and out again costs as much as a turn or two of the reactor."""
PATIENCE_SECONDS = 1 / 2
"""How long the kernel waits for a client to make room, which is told when a third of its few MiB has gone."""
_NICENESS = 5  # the reactor, which all others wait for, goes first
# Each a struct timeval.
_PATIENCE = struct.pack("@ll", 0, int(PATIENCE_SECONDS * 1_000_000))
_NO_PATIENCE = struct.pack("@ll", 0, 1)  # where 0 would be endless


class SendfileThreads:
    """Sends parts of files to clients that read quickly, each in a thread.

    While it does, the client's socket is a blocking one, and the reactor must not write to it. It may read:
    where epoll told of something to read that is nothing, it waits a tick for it.

    Args:
        reactor: receives the results of the pool.
        pool: threads for this and nothing else; a disk that hangs may take all of them.
    """

    def __init__(self, reactor: IReactorFromThreads, pool: ThreadPool) -> None:
        self._reactor = reactor
        self._pool = pool
        self._free: int = pool.max

    def send(self, client: socket.socket, extent: FileExtent) -> Deferred[int] | None:
        """Send a part of a file, as far as the client goes on reading quickly.

        Args:
            client: connected, with nothing of its own to send.
            extent: of a local file.

        Returns:
            how many bytes the kernel took: who goes on with the rest finds out why it was not all. It is
            cancelled when the connection is at its end: then that comes at once, and the thread follows when
            the disk lets go of it. None: all lanes are taken.
        """
        if not self._free:
            return None
        try:
            lane = client.dup()  # the client's own may be closed, and its number somebody else's, at any time
        except OSError:
            return None
        self._free -= 1
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_PATIENCE)
        lane.setblocking(True)  # noqa: FBT003 - its signature; it holds for the client's too
        before = taken_bytes(lane)
        sent: Deferred[int] = Deferred(lambda sent: _recall(sent, lane, before))
        sending = maybeDeferred(deferToThreadPool, self._reactor, self._pool, _send, lane, extent)
        sending.addErrback(_nothing_sent)
        sending.addCallback(self._leave, lane, sent)
        return sent

    def _leave(self, count: int, lane: socket.socket, sent: Deferred[int]) -> None:
        _wait_no_longer(lane)
        lane.close()
        self._free += 1
        if not sent.called:
            sent.callback(count)


def _recall(sent: Deferred[int], lane: socket.socket, before: int) -> None:
    _wait_no_longer(lane)
    sent.callback(taken_bytes(lane) - before)
    room = select.poll()
    room.register(lane, select.POLLOUT)
    if room.poll(0):  # so it is the disk that the thread waits for
        with suppress(OSError):  # the client may have ended it
            lane.shutdown(socket.SHUT_WR)


def _wait_no_longer(lane: socket.socket) -> None:
    """Have sendfile end as soon as the socket is full, even one that has begun."""
    lane.setblocking(False)  # noqa: FBT003 - its signature


def _send(lane: socket.socket, extent: FileExtent) -> int:
    """The file comes with the extent, and is closed when nothing refers to it."""
    with suppress(PermissionError):  # the process may be nicer than that
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # of this thread alone, on Linux
    try:
        return os.sendfile(lane.fileno(), extent.file.descriptor, extent.offset, extent.length)
    except OSError:
        return 0


def _nothing_sent(_: Failure) -> int:
    """No thread could be started: a container may have too few processes."""
    return 0
