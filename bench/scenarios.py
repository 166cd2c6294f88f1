"""Everything that is measured, in the order of the tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.race import Race
from bench.results import Target
from bench.wrk import Traffic, run_wrk

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIB = 1024
_THROUGHPUT_OF_RANGES = {2: 0.45, 64: 0.6, 1024: 1.2}
"""At 16 connections on plain HTTP, by KiB."""


def races() -> Iterator[Race]:
    """Every comparison with nginx."""
    for clients in (1, 4, 64):
        yield from _whole_image(clients)
    for kibibytes in (2, 64, 1024):
        for connections in (1, 16, 256):
            target = _THROUGHPUT_OF_RANGES[kibibytes] if connections == 16 else None  # noqa: PLR2004
            yield _ranges("http", kibibytes, connections, target)
    yield _ranges("https", 64, 16, 0.6)


def _whole_image(clients: int) -> Iterator[Race]:
    judged = clients == 4  # noqa: PLR2004 - what the targets are for
    for scheme, least in (("http", 1.0), ("https", 0.9)):
        yield Race(
            f"{scheme.upper()}, whole image, {_counted(clients, 'client')}",
            scheme,
            partial(_drive_whole, clients),
            counts_bytes=True,
            throughput_target=Target(at_least=least) if judged else Target(),
            cpu_target=Target(at_most=1.0) if judged and scheme == "http" else Target(),
        )


def _ranges(scheme: str, kibibytes: int, connections: int, target: float | None) -> Race:
    return Race(
        f"{scheme.upper()}, {kibibytes} KiB ranges, {_counted(connections, 'connection')}",
        scheme,
        partial(_drive_ranges, connections, kibibytes * _KIB),
        throughput_target=Target() if target is None else Target(at_least=target),
    )


def _drive_whole(clients: int, url: str, _file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, clients, seconds)


def _drive_ranges(connections: int, range_bytes: int, url: str, file_bytes: int, seconds: int) -> Traffic:
    return run_wrk(url, connections, seconds, range_bytes=range_bytes, file_bytes=file_bytes)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
