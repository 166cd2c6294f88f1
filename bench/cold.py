"""Cached ranges beside downloads that wait for a slow disk; needs root, for FUSE.

Two base images: one in the page cache, one on a file system whose reads take 50 ms each. One client of the
load test mounts the first, without and with others that download the second.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from bench.base_images import dense_image, drop_from_page_cache
from bench.load import load_test, run_load_test
from bench.results import Target
from bench.servers import SERVICE, LeftOut, image_path, start
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.load import LoadReport
    from bench.stage import Stage

_COLD_MEGABYTES = 64
_DOWNLOADS = 4


def study_cold_disk(stage: Stage) -> Iterator[Figure]:
    """Time cached ranges, first alone, then beside downloads from the slow disk."""
    if os.geteuid() or not Path("/dev/fuse").exists():
        raise LeftOut("a file system cannot be mounted: that needs root and FUSE")
    with ExitStack() as stack:
        mounted = stage.directory / "slow"
        mounted.mkdir(exist_ok=True)
        # Renamed, because the cached image may have the same size and so the same name.
        source = dense_image(stage.directory, _COLD_MEGABYTES).rename(stage.directory / "cold.iso")
        cold = mounted / source.name
        command = [sys.executable, "-m", "bench.slow_disk", str(source), str(mounted)]
        disk = start(stack, command, stage.directory / "slow_disk.log", cold.stat)
        server = stage.start_service(stack, images=(stage.image, cold))
        drop_from_page_cache(cold)
        disk.send_signal(signal.SIGUSR1)
        url, report = server.urls["http"], stage.directory / "report"
        mount = ("--clients=1", f"--duration={stage.effort.seconds}s")
        yield _figure("a cached range, alone, 99th percentile", run_load_test(url, report, *mount))
        downloads = ("--profile=download", f"--clients={_DOWNLOADS}", "--duration=1h")
        cold_url = urljoin(url, f"/{image_path(cold)}")
        with load_test(cold_url, stage.directory / "downloads", *downloads) as cold_downloads:
            beside = run_load_test(url, report, *mount)
            cold_downloads.interrupt()
            received = cold_downloads.read_report()["counts"]["bytes"] / 2**20
        yield _figure("a cached range, beside cold downloads, 99th percentile", beside, 20)
        yield Figure(SERVICE, "cold downloads meanwhile", "MiB", [received], Target(at_least=0.1))


def _figure(what: str, report: LoadReport, at_most: float | None = None) -> Figure:
    milliseconds = report["timings"]["range"]["p99_seconds"] * 1000
    return Figure(
        SERVICE, what, "ms", [milliseconds], Target() if at_most is None else Target(at_most=at_most)
    )
