"""The GPT around a partition, as our reader and sfdisk see it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.formats.disk.partition_types import LINUX_FILE_SYSTEM
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.disk.wrapped_partition import OFFSET, WrappedPartition
from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def disk_of(wrapped: WrappedPartition) -> bytes:
    head, tail = wrapped.head(), wrapped.tail()
    return head + bytes(wrapped.disk_size - len(head) - len(tail)) + tail


@given(st.integers(1, 5000), st.binary(max_size=4))
def test_table_is_whole_and_has_the_partition_alone(sectors: int, beginning: bytes) -> None:
    wrapped = WrappedPartition(sectors * 512, beginning)
    disk = disk_of(wrapped)
    assert len(disk) == wrapped.disk_size
    assert len(disk) % MIB == 0
    table = read_partitions(lambda offset, length: disk[offset : offset + length], len(disk))
    assert table
    assert (table.scheme, table.sector_size, table.faults) == ("gpt", 512, ())
    (partition,) = table.partitions
    assert (partition.offset, partition.length, partition.type) == (OFFSET, sectors * 512, LINUX_FILE_SYSTEM)


def test_identities_depend_on_the_partition_alone() -> None:
    assert WrappedPartition(MIB, b"a").head() == WrappedPartition(MIB, b"a").head()
    heads = {WrappedPartition(MIB, b"a").head(), WrappedPartition(MIB, b"b").head()}
    assert len(heads) == 2


@pytest.mark.acceptance
def test_sfdisk_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "disk.raw"
    path.write_bytes(disk_of(WrappedPartition(3 * MIB + 512, b"a file system")))
    assert b"No errors detected" in run_client("sfdisk", "--verify", str(path))
    (partition,) = json.loads(run_client("sfdisk", "--json", str(path)))["partitiontable"]["partitions"]
    assert (partition["start"], partition["size"]) == (OFFSET // 512, 3 * MIB // 512 + 1)
