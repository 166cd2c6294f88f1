"""All scenarios, in the order of the tables."""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING

from bench.base_images import drop_from_page_cache
from bench.comparison import Comparison
from bench.edits import study_edits
from bench.first_requests import CONFIG_KIB, study_first_requests
from bench.flatness import study_base_size, study_connections
from bench.mounts import study_mounts
from bench.moved_configs import study_moved_configs
from bench.remote import study_cold, study_neighbors, study_warm
from bench.replay import download, prepare, replay, request
from bench.replicas import study_replicas
from bench.results import Target
from bench.servers import MOUNT
from bench.slow_readers import study_slow_readers
from bench.study import Study
from bench.workers import study_workers
from bench.wrk import Traffic, run_wrk
from image_service.settings.settings import variables
from image_service.tools.loadtest.traffic.profiles import Profile, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.replay import Exchange
    from bench.stage import Stage

_KIB = 1024
_RANGE_TARGETS = {(2, 16): 0.45, (64, 16): 0.6, (1024, 16): 1.2}
"""Throughput on plain HTTP, by KiB and connections."""
_WHOLE_TARGETS = {("http", 4): 1.0, ("https", 4): 0.9}


def scenarios(stage: Stage) -> Iterator[Comparison | Study]:
    """Yield every scenario; its servers start when it runs."""
    yield from _comparisons(stage)
    yield from _studies(stage)


def _comparisons(stage: Stage) -> Iterator[Comparison]:
    for clients in (1, 4, 64):
        yield from (_whole_image(scheme, clients) for scheme in ("http", "https"))
    yield _cold_image(stage)
    for kibibytes in (2, 64, 1024):
        for connections in (1, 16, 256):
            yield _ranges("http", kibibytes, connections, _RANGE_TARGETS.get((kibibytes, connections)))
    yield _ranges("https", 64, 16, 0.6)
    yield Comparison("HTTP, a BMC's mount", "http", _generate_mount, preferred_url=MOUNT)
    yield Comparison("HTTP, HEAD, 16 connections", "http", _generate_heads)


def _studies(stage: Stage) -> Iterator[Study]:
    yield Study(f"first request of an infra-env, {CONFIG_KIB} KiB of Ignition config", study_first_requests)
    for index, readers in enumerate(stage.effort.readers):
        for scheme in ("http", "https"):
            name = f"{scheme.upper()}, {readers:,} readers at 10 KiB/s"
            yield Study(name, partial(study_slow_readers, scheme, index))
    yield Study("16 MiB of Ignition config behind the end of the ISO", study_moved_configs)
    yield Study("edits of ISOs", study_edits)
    yield Study("64 KiB ranges, more connections", study_connections)
    yield Study("64 KiB ranges, larger base image", study_base_size)
    yield Study("remote base, 64 KiB ranges", study_warm)
    yield Study("remote base, first reading", study_cold)
    yield Study("remote base, neighbors of the first reading", study_neighbors)
    if any("WORKERS" in variable.names for variable in variables()):
        yield Study("64 KiB ranges, more workers", study_workers)
    yield Study("64 KiB ranges, mounts recorded and not", study_mounts)
    yield Study("64 KiB ranges, more replicas", study_replicas)


def _whole_image(scheme: str, clients: int) -> Comparison:
    target = _WHOLE_TARGETS.get((scheme, clients))
    return Comparison(
        f"{scheme.upper()}, whole image, {_counted(clients, 'client')}",
        scheme,
        partial(_generate_whole, clients),
        counts_bytes=True,
        throughput_target=_at_least(target),
        cpu_target=Target(at_most=1.0) if target and scheme == "http" else Target(),
    )


def _cold_image(stage: Stage) -> Comparison:
    return Comparison(
        "HTTP, whole image, 1 client, cold page cache",
        "http",
        lambda url, _file_bytes, _seconds: download(url),
        counts_bytes=True,
        prepare=lambda: drop_from_page_cache(stage.image),
    )


def _ranges(scheme: str, kibibytes: int, connections: int, target: float | None) -> Comparison:
    return Comparison(
        f"{scheme.upper()}, {kibibytes} KiB ranges, {_counted(connections, 'connection')}",
        scheme,
        partial(_generate_ranges, connections, kibibytes * _KIB),
        throughput_target=_at_least(target),
    )


def _generate_whole(clients: int, url: str, _file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, clients, seconds)


def _generate_ranges(connections: int, range_bytes: int, url: str, file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, connections, seconds, range_bytes=range_bytes, file_bytes=file_bytes)


def _generate_heads(url: str, _file_bytes: int, seconds: int) -> Traffic:
    """Send HEAD requests; wrk cannot, because it waits for content."""
    return replay(url, [_head_script(url)] * 16, seconds)


@cache
def _head_script(url: str) -> tuple[Exchange, ...]:
    return prepare(url, [request(url, "HEAD")])


def _generate_mount(url: str, file_bytes: int, seconds: int) -> Traffic:
    """Replay the load test's synthetic trace of a mount on one connection, again and again."""
    return replay(url, [_mount_script(url, file_bytes)], seconds)


@cache
def _mount_script(url: str, file_bytes: int) -> tuple[Exchange, ...]:
    trace = ranges(Profile.MOUNT, file_bytes, Random(960))  # noqa: S311 - the same trace in each run
    reads = (request(url, first=start, length=stop - start) for start, stop in trace)
    return prepare(url, [request(url, "HEAD"), *reads])


def _at_least(target: float | None) -> Target:
    return Target() if target is None else Target(at_least=target)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
