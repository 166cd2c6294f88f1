"""Configs behind the end of the ISO: what their ranges cost, and what their first requests cost others."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack, closing
from http import HTTPStatus
from typing import TYPE_CHECKING

from bench.first_requests import (
    connect,
    send_get,
    start_upstream,
    upstream_environment,
)
from bench.flatness import cpu_measurement
from bench.results import Target
from bench.servers import SERVICE, image_path
from bench.study import Figure, ratios

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.servers import Server
    from bench.stage import Stage

_SMALL_KIB, _LARGE_KIB = 64, 16 * 1024
_OTHERS_RANGE = {"Range": "bytes=0-4095"}
_CONNECTIONS = 16
_MANY_FILES = 20_000
_PAUSE_SECONDS = 0.002


def study_moved_configs(stage: Stage) -> Iterator[Figure]:
    """Measure an image with 16 MiB of config beside one whose config is in its area."""
    with ExitStack() as stack:
        services = []
        for name, kib, files in (
            ("in-place", _SMALL_KIB, 1),
            ("moved", _LARGE_KIB, 1),
            ("of-many-files", _LARGE_KIB, _MANY_FILES),
        ):
            upstream = start_upstream(stack, stage, kib, files)
            directory = stage.directory / name
            directory.mkdir(exist_ok=True)
            services.append(stage.start_service(stack, upstream_environment(upstream), directory))
        measurements = []
        for service in services[:2]:
            url = _url_of_new_infra_env(service, stage)
            measurements.append(cpu_measurement(service, url, _wait_until_served(url), _CONNECTIONS))
        values = ratios(stage.effort, *measurements)
        yield Figure(SERVICE, "CPU of a 64 KiB range, moved ÷ in place", "", values, Target(at_most=1.1))
        yield from _first_requests(stage, services[1], "one file")
        yield from _first_requests(stage, services[2], f"{_MANY_FILES:,} files")


def _url_of_new_infra_env(service: Server, stage: Stage) -> str:
    root = service.urls["http"].removesuffix(image_path(stage.image))
    return root + image_path(stage.image, str(uuid.uuid4()))


def _wait_until_served(url: str) -> int:
    """Return the size of an image, which is refused while it is being made."""
    with closing(connect(url)) as client:
        while True:
            client.request("HEAD", url)
            answer = client.getresponse()
            answer.read()
            if answer.status == HTTPStatus.OK:
                return int(answer.headers["Content-Length"])
            time.sleep(int(answer.headers["Retry-After"]))


def _first_requests(stage: Stage, service: Server, content: str) -> Iterator[Figure]:
    firsts: list[float] = []
    others: list[float] = []
    cpu_seconds: list[float] = []
    is_over = threading.Event()
    known = _url_of_new_infra_env(service, stage)
    _wait_until_served(known)

    def read_ranges() -> None:
        with closing(connect(known)) as client:
            while not is_over.wait(_PAUSE_SECONDS):
                started_at = time.perf_counter()
                send_get(client, known, _OTHERS_RANGE)
                others.append(time.perf_counter() - started_at)

    reader = threading.Thread(target=read_ranges)
    reader.start()
    try:
        for _ in range(stage.effort.rounds):
            url = _url_of_new_infra_env(service, stage)
            started_at, cpu_before = time.perf_counter(), service.cpu_seconds() or 0.0
            _wait_until_served(url)
            firsts.append(time.perf_counter() - started_at)
            cpu_seconds.append((service.cpu_seconds() or 0.0) - cpu_before)
    finally:
        is_over.set()
        reader.join()
    in_order = sorted(others)
    p99, longest = in_order[len(in_order) * 99 // 100], in_order[-1]
    first = f"first request with 16 MiB of config in {content}"
    yield Figure(SERVICE, first, "s", firsts, Target(at_most=3))
    yield Figure(SERVICE, f"CPU of it, and of the others' ranges, {content}", "s", cpu_seconds)
    yield Figure(SERVICE, f"others' ranges meanwhile, {content}, p99", "ms", [p99 * 1000], Target(at_most=20))
    yield Figure(
        SERVICE, f"others' ranges meanwhile, {content}, longest", "ms", [longest * 1000], Target(at_most=250)
    )
