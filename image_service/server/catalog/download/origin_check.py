"""One request for each URL of base images and streams, so that a wrong one is known before it is needed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.origins import public_url
from image_service.core.errors import ImageServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.server.catalog.download.origin_client import OriginClient

_THREADS = 8
_FIRST_BYTE = {"Range": "bytes=0-0"}


def check_origins(client: OriginClient, urls: Iterable[str], timeout_seconds: float) -> list[str]:
    """Return a sentence for each URL whose first byte cannot be fetched.

    Args:
        client: sends the requests.
        urls: ``http`` or ``https``.
        timeout_seconds: for all of them together.
    """
    faults: dict[str, str | None] = {
        url: f"cannot fetch {public_url(url)}: no response within {timeout_seconds:g} s" for url in urls
    }
    waiting = list(faults)
    interruption = Interruption()

    def run() -> None:
        with suppress(IndexError, Interrupted):  # IndexError: none is left
            while True:
                url = waiting.pop(0)
                try:
                    with client.fetch(url, _FIRST_BYTE, interruption):
                        faults[url] = None
                except ImageServiceError as error:
                    faults[url] = error.detail

    # Not a thread pool: a thread that waits for a name server would delay the exit of the process.
    threads = [threading.Thread(target=run, name="origin check", daemon=True) for _ in waiting[:_THREADS]]
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    found = [fault for fault in faults.values() if fault]
    interruption.interrupt()
    return found
