"""Base images for tests of remote bases: no byte of theirs is zero, so that a hole of a cache is noticed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.formats.iso_builder import build_iso, live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MIB = 1024 * 1024
ISLAND_BYTES = 3 * MIB
_NOT_ZERO = bytes([1, *range(1, 256)])


def noise(length: int, seed: int = 0) -> bytes:
    """Return bytes that differ from place to place, and are never zero."""
    return Random(seed).randbytes(length).translate(_NOT_ZERO)  # noqa: S311 - the same in each run


def remote_files(rootfs_bytes: int, seed: int = 0) -> Mapping[str, bytes]:
    """Return the files of a live ISO whose root file system is `noise`."""
    return live_files(rootfs=noise(rootfs_bytes, seed))


def dense_base(megabytes: int, seed: int = 0) -> bytes:
    """Return a live ISO of about so many MiB, without the zeros of a hole in its root file system."""
    return build_iso(remote_files(megabytes * MIB, seed))


def write_island_base(path: Path, gibibytes: int) -> Sequence[int]:
    """Write a live ISO that is sparse but for islands of `ISLAND_BYTES`; return the offsets of these.

    There is one each fourth GiB, not at a whole MiB, and one at the end.
    """
    gibibyte = 1024 * MIB
    end = gibibytes * gibibyte
    offsets = [*range(4 * gibibyte + 2048, end - gibibyte, 4 * gibibyte), end - ISLAND_BYTES]
    islands = {f"images/island{index:02}.img": offset for index, offset in enumerate(offsets)}
    contents = {name: noise(ISLAND_BYTES, seed) for seed, name in enumerate(islands)}
    write_sparse_iso(path, {**live_files(), **contents}, islands)
    return offsets
