"""Threads in which sendfile may block, for fast clients and for the disk.

Python adds to each turn of the reactor a third of the time that the kernel needs for the few MiB that the
socket's buffer holds. In a thread the kernel goes on by itself.
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

from image_service.server.transport.sending.tcp import accepted_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorFromThreads
    from twisted.python.threadpool import ThreadPool

    from image_service.core.extents import FileExtent

THREADS = 16
MAX_BYTES = 128 * 1024 * 1024
"""The bytes that a thread sends at a time; they are counted when the thread is done."""
MIN_BYTES = 4 * 1024 * 1024
"""Below it the hand-over to a thread and back costs more than the reactor's turns."""
TIMEOUT_SECONDS = 1 / 2
"""How long the kernel waits for a client to take bytes: it wakes up when a third of its few MiB has gone."""
_NICENESS = 5  # the reactor, which all others wait for, goes first
# Each a struct timeval.
_SEND_TIMEOUT = struct.pack("@ll", 0, int(TIMEOUT_SECONDS * 1_000_000))
_RECEIVE_TIMEOUT = struct.pack("@ll", 0, 1)  # where 0 would be endless


class SendfileThreads:
    """Sends parts of files to fast clients, each in a thread.

    Meanwhile the client's socket is a blocking one, and the reactor must not write to it. It may read: a read
    that finds nothing, after epoll has reported input, blocks for a tick.

    Args:
        reactor: receives the results of the pool.
        pool: threads for this alone; a disk that hangs may block all of them.
    """

    def __init__(self, reactor: IReactorFromThreads, pool: ThreadPool) -> None:
        self._reactor = reactor
        self._pool = pool
        self.limit: int = pool.max
        """The number of parts that may be sent at once."""
        self.free = self.limit
        """The number of parts that may be sent now, beside those in progress."""

    def send(
        self, client: socket.socket, extent: FileExtent, release: Callable[[], None] | None = None
    ) -> Deferred[int] | None:
        """Send a part of a file, as long as the client reads fast.

        Args:
            client: connected, with nothing of its own to send.
            extent: present on a local disk.
            release: called when the thread is done with the extent, unless None is returned.

        Returns:
            fires with the bytes that the kernel has accepted; sending the rest reports why it was not
            all. To be cancelled when the connection ends: it then fires, and the thread ends as soon as the
            disk responds. None if no thread is free.
        """
        if not self.free:
            return None
        try:
            handle = client.dup()  # the client's own may be closed, and its number reused, at any time
        except OSError:
            return None
        self.free -= 1
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
        handle.setblocking(True)  # noqa: FBT003 - its signature; it holds for the client's too
        before = accepted_bytes(handle)
        sent: Deferred[int] = Deferred(lambda sent: _cancel(sent, handle, before))
        sending = maybeDeferred(deferToThreadPool, self._reactor, self._pool, _send, handle, extent)
        sending.addErrback(lambda _: 0)  # no thread could be started: a container may have too few processes
        sending.addCallback(self._finish, handle, sent, release)
        return sent

    def _finish(
        self, count: int, handle: socket.socket, sent: Deferred[int], release: Callable[[], None] | None
    ) -> None:
        if release is not None:
            release()
        _unblock(handle)
        handle.close()
        self.free += 1
        if not sent.called:
            sent.callback(count)


def _cancel(sent: Deferred[int], handle: socket.socket, before: int) -> None:
    _unblock(handle)
    sent.callback(accepted_bytes(handle) - before)
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    if poll.poll(0):  # writable, so the thread waits for the disk
        with suppress(OSError):  # the client may have ended the connection
            handle.shutdown(socket.SHUT_WR)


def _unblock(handle: socket.socket) -> None:
    """Make sendfile end as soon as the socket is full, even one that has begun."""
    handle.setblocking(False)  # noqa: FBT003 - its signature


def _send(handle: socket.socket, extent: FileExtent) -> int:
    """Runs in the thread. The extent keeps its file open."""
    with suppress(PermissionError):  # the process may be nicer than that
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # of this thread alone, on Linux
    try:
        return os.sendfile(handle.fileno(), extent.file.descriptor, extent.offset, extent.length)
    except OSError:
        return 0
