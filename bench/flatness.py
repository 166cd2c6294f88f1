"""The cost of a request must not grow with the connections or with the size of the base image."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.base_images import sparse_image
from bench.results import Target
from bench.servers import SERVICE, image_path
from bench.study import Figure, ratios
from bench.wrk import run_wrk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.servers import Server
    from bench.stage import Stage

_FLAT = Target(at_most=1.1)
_RANGE_BYTES = 64 * 1024
_LAST_BYTES = 64 * 1024 * 1024
"""Ranges of a sparse image come from its end alone, because holes fill the page cache too."""


def study_connections(stage: Stage) -> Iterator[Figure]:
    """CPU time of a 64 KiB range with 256 connections, divided by that with 16."""
    for server in stage.servers:
        if server.pid is not None and "http" in server.urls:
            url, size_bytes = server.urls["http"], server.size_bytes("http")
            few, many = (cpu_measurement(server, url, size_bytes, connections) for connections in (16, 256))
            target = _FLAT if server.name == SERVICE else Target()
            yield Figure(
                server.name, "CPU of a request, 256 ÷ 16", "", ratios(stage.effort, few, many), target
            )


def study_base_size(stage: Stage, *, small: int, large: int) -> Iterator[Figure]:
    """CPU time of a 64 KiB range of a large sparse base, divided by that of a small one; sizes are in GiB."""
    images = [sparse_image(stage.directory, size) for size in (small, large)]
    with ExitStack() as stack:
        service = stage.start_service(stack, images=images)
        root = service.urls["http"].removesuffix(image_path(images[0]))
        urls = [root + image_path(image) for image in images]
        measurements = (
            cpu_measurement(service, url, image.stat().st_size, 16)
            for url, image in zip(urls, images, strict=True)
        )
        what = f"CPU of a request, {large} GiB ÷ {small} GiB"
        yield Figure(SERVICE, what, "", ratios(stage.effort, *measurements), _FLAT)


def cpu_measurement(server: Server, url: str, size_bytes: int, connections: int) -> Callable[[int], float]:
    """Return a function that measures the CPU time of a 64 KiB range for some seconds."""

    def measure(seconds: int) -> float:
        before = server.cpu_seconds() or 0.0
        first_byte = max(size_bytes - _LAST_BYTES, 0)
        traffic = run_wrk(
            url, connections, seconds, range_bytes=_RANGE_BYTES, file_bytes=size_bytes, first_byte=first_byte
        )
        return ((server.cpu_seconds() or 0.0) - before) / traffic.requests

    return measure
