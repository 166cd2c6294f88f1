"""One request for each URL of base images and streams, so that a wrong one is known before it is needed."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.origins import public_url
from image_service.common.registry.references import is_registry_url
from image_service.core.errors import ImageServiceError
from image_service.server.catalog.download.downloader import check_registry_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from image_service.server.catalog.download.origin_client import OriginClient

_THREADS = 8
_FIRST_BYTE = {"Range": "bytes=0-0"}


def check_origins(
    client: OriginClient,
    urls: Iterable[str],
    timeout_seconds: float,
    architectures: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a sentence for each URL whose first byte, or manifest, cannot be fetched.

    Args:
        client: sends the requests.
        urls: ``http`` or ``https``, or of a file in a registry.
        timeout_seconds: for all of them together.
        architectures: of files in registries, by their URLs.
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
                    _probe(client, url, (architectures or {}).get(url, ""), interruption)
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


def _probe(client: OriginClient, url: str, architecture: str, interruption: Interruption) -> None:
    if is_registry_url(url):
        check_registry_file(client, url, architecture, interruption)
        return
    with client.fetch(url, _FIRST_BYTE, interruption):
        pass
