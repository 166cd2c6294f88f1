"""The registry of all scenarios, in the order of the tables.

A study whose numbers are not those of the run's `Effort` has its full ones and small ones here.
"""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING

from bench.base_images import drop_from_page_cache
from bench.cold import study_cold_disk
from bench.comparison import Comparison
from bench.composes import study_composes
from bench.edits import study_edits
from bench.first_requests import CONFIG_KIB, study_first_requests
from bench.flatness import study_base_size, study_connections
from bench.growth import study_growth
from bench.imaging import (
    study_conversion,
    study_disk_customization,
    study_disk_inspection,
    study_iso_customization,
    study_transfers,
)
from bench.jobs import study_artifacts
from bench.mounts import study_mounts
from bench.moved_configs import study_moved_configs
from bench.queued_composes import study_queue
from bench.remote import study_cold, study_neighbors, study_warm
from bench.replay import download, prepare, replay, request
from bench.replicas import study_replicas
from bench.results import Target
from bench.servers import MOUNT
from bench.slow_readers import study_slow_readers
from bench.soak import study_memory
from bench.study import Study
from bench.tenants import study_tenants
from bench.verification import study_verification
from bench.workers import study_workers
from bench.wrk import Traffic, run_wrk
from image_service.tools.loadtest.traffic.profiles import Profile, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.replay import Exchange

_KIB = 1024
_RANGE_TARGETS = {
    ("http", 2, 16): 0.45,
    ("http", 64, 16): 0.6,
    ("http", 1024, 16): 1.2,
    ("https", 64, 16): 0.6,
}
"""Throughput by scheme, KiB and connections."""
_RANGE_CPU_TARGETS = {("http", 2): 1.8, ("http", 64): 1.8, ("https", 64): 1.5}
"""CPU by scheme and KiB."""
_WHOLE_TARGETS = {("http", 4): 1.0, ("https", 4): 0.9}


def _whole_image(scheme: str, clients: int) -> Comparison:
    target = _WHOLE_TARGETS.get((scheme, clients))
    return Comparison(
        f"{scheme.upper()}, whole image, {_counted(clients, 'client')}",
        scheme,
        partial(_generate_whole, clients),
        counts_bytes=True,
        throughput_target=_at_least(target),
        cpu_target=Target(at_most=1.0) if scheme == "http" else Target(),
    )


def _ranges(scheme: str, kibibytes: int, connections: int) -> Comparison:
    return Comparison(
        f"{scheme.upper()}, {kibibytes} KiB ranges, {_counted(connections, 'connection')}",
        scheme,
        partial(_generate_ranges, connections, kibibytes * _KIB),
        throughput_target=_at_least(_RANGE_TARGETS.get((scheme, kibibytes, connections))),
        cpu_target=_at_most(_RANGE_CPU_TARGETS.get((scheme, kibibytes))),
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


def _conversion(source: str, target: str, *, digests: bool = False) -> Study:
    run = partial(study_conversion, source_format=source, target_format=target, digests=digests)
    return Study(
        f"convert {source} to {target}{', with digests' if digests else ''}",
        partial(run, mebibytes=4 * _KIB),
        partial(run, mebibytes=64),
    )


def _at_least(target: float | None) -> Target:
    return Target() if target is None else Target(at_least=target)


def _at_most(target: float | None) -> Target:
    return Target() if target is None else Target(at_most=target)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


SCENARIOS: Sequence[Comparison | Study] = (
    *(_whole_image(scheme, clients) for clients in (1, 4, 64) for scheme in ("http", "https")),
    Comparison(
        "HTTP, whole image, 1 client, cold page cache",
        "http",
        lambda url, _file_bytes, _seconds: download(url),
        counts_bytes=True,
        prepare=drop_from_page_cache,
        cpu_target=_at_most(1.3),
    ),
    *(_ranges("http", size, connections) for size in (2, 64, 1024) for connections in (1, 16, 256)),
    _ranges("https", 64, 16),
    Comparison(
        "HTTP, a BMC's mount",
        "http",
        _generate_mount,
        preferred_url=MOUNT,
        throughput_target=_at_least(0.75),
    ),
    Comparison("HTTP, HEAD, 16 connections", "http", _generate_heads, cpu_target=_at_most(4.0)),
    Study(
        f"first request of an infra-env, {CONFIG_KIB} KiB of Ignition config",
        partial(study_first_requests, infra_envs=200),
        partial(study_first_requests, infra_envs=5),
    ),
    Study("growth of first requests", study_growth, partial(study_growth, many=(200, 4), turns=1)),
    *(
        Study(
            f"{scheme.upper()}, slow readers at 10 KiB/s",
            partial(study_slow_readers, scheme=scheme, count=10_000, seconds=16),
            partial(study_slow_readers, scheme=scheme, count=50, seconds=2),
        )
        for scheme in ("http", "https")
    ),
    Study("16 MiB of Ignition config behind the end of the ISO", study_moved_configs),
    Study("edits of ISOs", study_edits),
    Study("64 KiB ranges, more connections", study_connections),
    Study(
        "64 KiB ranges, larger base image",
        partial(study_base_size, small=1, large=60),
        partial(study_base_size, small=1, large=2),
    ),
    Study("remote base, 64 KiB ranges", study_warm),
    Study("remote base, first reading", study_cold),
    Study("remote base, neighbors of the first reading", study_neighbors),
    Study("cached ranges beside a slow disk", study_cold_disk),
    Study("64 KiB ranges, more workers", study_workers),
    Study("64 KiB ranges, mounts recorded and not", study_mounts),
    Study("64 KiB ranges, more replicas", study_replicas),
    Study(
        "memory growth",
        partial(study_memory, ranges=1_000_000, infra_envs=20_000, warm_up=17_000, parts=50),
        partial(study_memory, ranges=2_000, infra_envs=20, warm_up=2, parts=4),
    ),
    Study("verification of a customized image", study_verification),
    *(_conversion("raw", "qcow2"), _conversion("qcow2", "raw"), _conversion("qcow2", "raw", digests=True)),
    *(_conversion("qcow2", target) for target in ("vhd", "vhdx", "vmdk")),
    Study("customize a CoreOS ISO", study_iso_customization),
    Study("customize a CoreOS disk in place", study_disk_customization),
    Study("inspect a CoreOS disk", study_disk_inspection),
    Study(
        "publish and fetch an image",
        partial(study_transfers, mebibytes=_KIB),
        partial(study_transfers, mebibytes=64),
    ),
    Study(
        "composes by one worker",
        partial(study_composes, alone=5, at_once=30),
        partial(study_composes, alone=1, at_once=2),
    ),
    Study(
        "composes in a queue",
        partial(study_queue, waiting=10_000, seconds=60),
        partial(study_queue, waiting=20, seconds=2),
    ),
    Study(
        "artifacts of jobs",
        partial(study_artifacts, mib=512, artifacts=4),
        partial(study_artifacts, mib=16, artifacts=2),
    ),
    Study(
        "a quiet tenant beside four noisy ones",
        partial(study_tenants, images=5, seconds=120, clients=3),
        partial(study_tenants, images=1, seconds=5, clients=1),
    ),
)
