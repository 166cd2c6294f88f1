"""Cached ranges beside downloads that wait for a slow disk: ``python -m bench.cold``; needs root, for FUSE.

Two base images: one in the page cache, one on a file system of which each read takes 50 ms. A client asks
for 64 KiB ranges of the first, one after the other, without and with others that download the second.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.base_images import dense_image, drop_from_page_cache
from bench.results import Target
from bench.servers import SERVICE, end_on_sigterm, image_path, start
from bench.stage import Effort, Stage
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RANGE_BYTES = 64 * 1024
_COLD_MEGABYTES = 64
_DOWNLOADS = 4
_MILLISECONDS = 1000


def study_cold_disk(stage: Stage) -> Iterator[Figure]:
    """Time cached ranges, first alone, then beside downloads of what is cold."""
    with ExitStack() as stack:
        shown = stage.directory / "slow"
        shown.mkdir(exist_ok=True)
        # By another name than the cached image has, which may be as large.
        source = dense_image(stage.directory, _COLD_MEGABYTES).rename(stage.directory / "cold.iso")
        cold = shown / source.name
        command = [sys.executable, "-m", "bench.slow_disk", str(source), str(shown)]
        disk = start(stack, command, stage.directory / "slow_disk.log", cold.stat)
        server = stage.start_service(stack, images=(stage.image, cold))
        drop_from_page_cache(cold)
        disk.send_signal(signal.SIGUSR1)
        url = server.urls["http"]
        hot = urlsplit(url)
        alone = _range_milliseconds(url, server.size_bytes("http"), stage.effort.seconds)
        yield _figure("64 KiB of cached data, alone, 99th percentile", alone)
        ended = threading.Event()
        cold_url = f"{hot.scheme}://{hot.netloc}/{image_path(cold)}"
        with closing(_Downloads(cold_url, _DOWNLOADS, ended)) as downloads:
            beside = _range_milliseconds(url, server.size_bytes("http"), stage.effort.seconds)
            received = downloads.received
        yield _figure("64 KiB of cached data, beside cold downloads, 99th percentile", beside, 20)
        yield Figure(SERVICE, "cold downloads meanwhile", "MiB", [received / 2**20], Target(at_least=0.1))


def _figure(what: str, milliseconds: Sequence[float], at_most: float | None = None) -> Figure:
    target = Target() if at_most is None else Target(at_most=at_most)
    return Figure(SERVICE, what, "ms", [statistics.quantiles(milliseconds, n=100)[-1]], target)


def _range_milliseconds(url: str, size: int, seconds: float) -> list[float]:
    """How long each of as many ranges took as there was time for."""
    parts, taken = urlsplit(url), []
    end = time.monotonic() + seconds
    with closing(HTTPConnection(parts.netloc)) as connection:
        while (began := time.monotonic()) < end:
            first = random.randrange(0, size - _RANGE_BYTES)  # noqa: S311 - any will do
            fields = {"Range": f"bytes={first}-{first + _RANGE_BYTES - 1}"}
            connection.request("GET", parts.path, headers=fields)
            connection.getresponse().read()
            taken.append((time.monotonic() - began) * _MILLISECONDS)
    return taken


class _Downloads:
    """Clients that download all the time, each in a thread.

    Args:
        url: of the image.
        count: how many.
        ended: set when they are to stop.
    """

    def __init__(self, url: str, count: int, ended: threading.Event) -> None:
        self.received = 0
        self._url = urlsplit(url)
        self._ended = ended
        self._threads = [threading.Thread(target=self._download, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _download(self, number: int) -> None:
        """From elsewhere in the image than the others, so that nobody reads for another."""
        first = number * _COLD_MEGABYTES // _DOWNLOADS * 2**20
        with closing(HTTPConnection(self._url.netloc)) as connection:
            connection.request("GET", self._url.path, headers={"Range": f"bytes={first}-"})
            answer = connection.getresponse()
            while not self._ended.is_set() and (data := answer.read1(_RANGE_BYTES)):
                self.received += len(data)

    def close(self) -> None:
        """Have them stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join()


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=__doc__)
    parser.add_argument("--seconds", type=int, default=4, help="of each part (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=256, help="of the cached image (%(default)s)")
    options = parser.parse_args()
    end_on_sigterm()
    if os.geteuid():
        raise SystemExit("to mount a file system takes root")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        stage = Stage(Effort(seconds=options.seconds, megabytes=options.megabytes), directory, stack)
        for figure in study_cold_disk(stage):
            wanted = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in figure.target.items())
            print(f"{figure.what}: {figure.values[0]:.2f} {figure.unit}{wanted}", flush=True)


if __name__ == "__main__":
    main()
