"""The rate at which a client takes a download."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from image_service.server.transport.sending.tcp import acknowledged_bytes, queued_bytes

if TYPE_CHECKING:
    import socket

WINDOW_SECONDS = 4.0
"""A rate is measured over this window, so a download is known to be slow after this time at the earliest."""


class DownloadRate:
    """The rate of one download over a sliding window: bytes that the client's TCP acknowledges.

    Bytes that the kernel accepts would not do: it buffers hundreds of KiB for a client that does not read.
    """

    __slots__ = ("_connection", "_samples")

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> float | None:
        """Return the bytes per second in the window; None if it is too early to tell.

        The window begins anew when the client has acknowledged everything, because it then waits for this
        service, and when there were no samples for longer than a window.
        """
        samples = self._samples
        if (samples and now - samples[-1][0] > WINDOW_SECONDS) or not queued_bytes(self._connection):
            samples.clear()
        samples.append((now, acknowledged_bytes(self._connection)))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()
        (since, before), (_, after) = samples[0], samples[-1]
        return None if now - since < WINDOW_SECONDS else (after - before) / (now - since)
