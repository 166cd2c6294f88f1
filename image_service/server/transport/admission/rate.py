"""The rate at which a client takes a download, or sends an upload."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from image_service.server.transport.sending.tcp import acknowledged_bytes, queued_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

WINDOW_SECONDS = 4.0
"""A rate is measured over this window, so a client is known to be slow after this time at the earliest."""


class ClientRate:
    """The rate of one client over a sliding window.

    Args:
        count: returns the bytes so far.
        is_client_slow: returns False while the client waits for this service.
    """

    __slots__ = ("_count", "_is_client_slow", "_samples")

    def __init__(self, count: Callable[[], int], is_client_slow: Callable[[], bool]) -> None:
        self._count = count
        self._is_client_slow = is_client_slow
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> float | None:
        """Return the bytes per second in the window; None if it is too early to tell.

        The window begins anew when the client waits for this service, and when there were no samples for
        longer than a window.
        """
        samples = self._samples
        if (samples and now - samples[-1][0] > WINDOW_SECONDS) or not self._is_client_slow():
            samples.clear()
        samples.append((now, self._count()))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()
        (since, before), (_, after) = samples[0], samples[-1]
        return None if now - since < WINDOW_SECONDS else (after - before) / (now - since)


class DownloadRate(ClientRate):
    """The rate of one download: bytes that the client's TCP acknowledges, while it has not done so with all.

    Bytes that the kernel accepts would not do: it buffers hundreds of KiB for a client that does not read.
    """

    __slots__ = ()

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(lambda: acknowledged_bytes(connection), lambda: queued_bytes(connection) > 0)
