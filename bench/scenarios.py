"""Everything that is measured, in the order of the tables."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from bench.base_images import drop_from_page_cache
from bench.first_requests import CONFIG_KIB, study_first_requests
from bench.flatness import study_base_size, study_connections
from bench.mount import drive_mount
from bench.race import Race
from bench.replay import download, learn, replay, request
from bench.results import Target
from bench.servers import MOUNT
from bench.slow_readers import study_slow_readers
from bench.study import Study
from bench.workers import study_workers
from bench.wrk import Traffic, run_wrk
from image_service.settings.settings import variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.replay import Exchange
    from bench.stage import Stage

_KIB = 1024
_RANGE_TARGETS = {(2, 16): 0.45, (64, 16): 0.6, (1024, 16): 1.2}
"""Throughput on plain HTTP, by KiB and connections."""
_WHOLE_TARGETS = {("http", 4): 1.0, ("https", 4): 0.9}


def scenarios(stage: Stage) -> Iterator[Race | Study]:
    """Every scenario; nothing is started for it before it runs."""
    yield from _races(stage)
    yield from _studies(stage)


def _races(stage: Stage) -> Iterator[Race]:
    for clients in (1, 4, 64):
        yield from (_whole_image(scheme, clients) for scheme in ("http", "https"))
    yield _cold_image(stage)
    for kibibytes in (2, 64, 1024):
        for connections in (1, 16, 256):
            yield _ranges("http", kibibytes, connections, _RANGE_TARGETS.get((kibibytes, connections)))
    yield _ranges("https", 64, 16, 0.6)
    yield Race("HTTP, a BMC's mount", "http", drive_mount, better=MOUNT)
    yield Race("HTTP, HEAD, 16 connections", "http", _drive_heads)


def _studies(stage: Stage) -> Iterator[Study]:
    yield Study(f"first request of an infra-env, {CONFIG_KIB} KiB of Ignition config", study_first_requests)
    for index, readers in enumerate(stage.effort.readers):
        for scheme in ("http", "https"):
            name = f"{scheme.upper()}, {readers:,} readers at 10 KiB/s"
            yield Study(name, partial(study_slow_readers, scheme, index))
    yield Study("64 KiB ranges, more connections", study_connections)
    yield Study("64 KiB ranges, larger base image", study_base_size)
    if any("WORKERS" in variable.names for variable in variables()):
        yield Study("64 KiB ranges, more workers", study_workers)


def _whole_image(scheme: str, clients: int) -> Race:
    target = _WHOLE_TARGETS.get((scheme, clients))
    return Race(
        f"{scheme.upper()}, whole image, {_counted(clients, 'client')}",
        scheme,
        partial(_drive_whole, clients),
        counts_bytes=True,
        throughput_target=_at_least(target),
        cpu_target=Target(at_most=1.0) if target and scheme == "http" else Target(),
    )


def _cold_image(stage: Stage) -> Race:
    return Race(
        "HTTP, whole image, 1 client, cold page cache",
        "http",
        lambda url, _file_bytes, _seconds: download(url),
        counts_bytes=True,
        prepare=lambda: drop_from_page_cache(stage.image),
    )


def _ranges(scheme: str, kibibytes: int, connections: int, target: float | None) -> Race:
    return Race(
        f"{scheme.upper()}, {kibibytes} KiB ranges, {_counted(connections, 'connection')}",
        scheme,
        partial(_drive_ranges, connections, kibibytes * _KIB),
        throughput_target=_at_least(target),
    )


def _drive_whole(clients: int, url: str, _file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, clients, seconds)


def _drive_ranges(connections: int, range_bytes: int, url: str, file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, connections, seconds, range_bytes=range_bytes, file_bytes=file_bytes)


def _drive_heads(url: str, _file_bytes: int, seconds: int) -> Traffic:
    """Not by wrk, which waits for a content."""
    return replay(url, [_head(url)] * 16, seconds)


@cache
def _head(url: str) -> tuple[Exchange, ...]:
    return learn(url, [request(url, "HEAD")])


def _at_least(target: float | None) -> Target:
    return Target() if target is None else Target(at_least=target)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
