"""Base images for tests of remote bases: no byte of theirs is zero, so that a hole of a cache is noticed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MIB = 1024 * 1024
ISLAND_BYTES = 3 * MIB
_TURN_BYTES = 4099  # prime, so that no MiB of a large file repeats another
_NOT_ZERO = bytes([1, *range(1, 256)])


def noise(length: int, seed: int = 0) -> bytes:
    """Return bytes that are never zero and differ from one MiB to the next."""
    block = Random(seed).randbytes(MIB).translate(_NOT_ZERO)  # noqa: S311 - the same in each run
    turns = ((index * _TURN_BYTES) % MIB for index in range(-(-length // MIB)))
    return b"".join(block[turn:] + block[:turn] for turn in turns)[:length]


def dense_base(megabytes: int, seed: int = 0) -> bytes:
    """Return a live ISO of about so many MiB, whose root file system is `noise`.

    Its minimal ISO can be spliced, so that nothing has to be derived from all of it.
    """
    return live_iso_with_minimal(noise(megabytes * MIB, seed))


def write_island_base(path: Path, gibibytes: int) -> Sequence[int]:
    """Write a live ISO that is sparse but for islands of `ISLAND_BYTES`; return the offsets of these.

    There is one each fourth GiB, not at a whole MiB, and one at the end.
    """
    gibibyte = 1024 * MIB
    end = gibibytes * gibibyte
    offsets = [*range(4 * gibibyte + 2048, end - gibibyte, 4 * gibibyte), end - ISLAND_BYTES]
    islands = {f"data/island{index:02}.img": offset for index, offset in enumerate(offsets)}
    contents = {name: noise(ISLAND_BYTES, seed) for seed, name in enumerate(islands)}
    write_sparse_iso(path, {**live_files(), **contents}, islands)
    return offsets
