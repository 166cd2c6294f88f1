from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.partition_types import (
    BIOS_BOOT,
    EFI_SYSTEM,
    LINUX_FILE_SYSTEM,
    type_name,
)
from image_service.core.formats.disk.partitions import PartitionTable, read_partitions
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
SIZE = 48 * MIB
GPT_SCRIPT = f"""label: gpt
label-id: 01234567-89AB-CDEF-0123-456789ABCDEF
size=1MiB, type={BIOS_BOOT}, name="BIOS-BOOT"
size=8MiB, type=uefi, name="EFI-SYSTEM"
size=16MiB, name=boot
name="root ä", uuid=11111111-2222-3333-4444-555555555555
"""
MBR_SCRIPT = """label: dos
label-id: 0xdeadbeef
size=4MiB, type=c, bootable
size=8MiB, type=83
type=f
size=2MiB, type=82
size=3MiB, type=83
type=7
"""


FDISK_COMMANDS = f"""g
n
1

+1M
n
2

+8M
n
3

+16M
n
4


t
1
{BIOS_BOOT}
t
2
uefi
x
n
3
boot
r
w
"""


def make_disk(path: Path, script: str, sector: int = 512) -> bytes:
    """Return a disk that sfdisk has partitioned, or fdisk: sfdisk takes 512-byte sectors for files."""
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(SIZE)
    program = f"{needs_client('sfdisk')} -q" if sector == 512 else f"{needs_client('fdisk')} -b {sector}"
    (path.parent / "script").write_text(script if sector == 512 else FDISK_COMMANDS)
    run_client("sh", "-c", f"{program} {path} < {path.parent / 'script'}")
    return path.read_bytes()


def read(disk: bytes) -> PartitionTable | None:
    return read_partitions(MeteredReader(disk, 3 * MIB), len(disk))


def read_table(disk: bytes) -> PartitionTable:
    table = read(disk)
    assert table
    return table


@pytest.mark.parametrize("script", [GPT_SCRIPT, MBR_SCRIPT])
def test_partitions_are_those_that_sfdisk_lists(tmp_path: Path, script: str) -> None:
    disk = make_disk(tmp_path / "disk", script)
    told = json.loads(run_client("sfdisk", "--json", tmp_path / "disk"))["partitiontable"]

    table = read_table(disk)

    assert table.scheme == {"gpt": "gpt", "dos": "mbr"}[told["label"]]
    assert table.sector_size == told["sectorsize"]
    assert table.uuid == told["id"].removeprefix("0x").lower()
    assert [(each.offset, each.length) for each in table.partitions] == [
        (each["start"] * 512, each["size"] * 512) for each in told["partitions"]
    ]
    types = [
        f"0x{int(each['type'], 16):02X}" if table.scheme == "mbr" else each["type"]
        for each in told["partitions"]
    ]
    assert [each.type for each in table.partitions] == types
    assert [each.name for each in table.partitions] == [each.get("name", "") for each in told["partitions"]]
    assert [each.number for each in table.partitions] == [
        int(each["node"].removeprefix(str(tmp_path / "disk"))) for each in told["partitions"]
    ]
    assert table.faults == ()


def test_gpt_has_names_uuids_and_types(tmp_path: Path) -> None:
    table = read_table(make_disk(tmp_path / "disk", GPT_SCRIPT))

    assert table.uuid == "01234567-89ab-cdef-0123-456789abcdef"
    assert [type_name(each.type) for each in table.partitions] == [
        "BIOS boot", "EFI system", "Linux file system", "Linux file system",
    ]  # fmt: skip
    assert [each.type for each in table.partitions][:3] == [BIOS_BOOT, EFI_SYSTEM, LINUX_FILE_SYSTEM]
    assert table.partitions[3].name == "root ä"
    assert table.partitions[3].uuid == "11111111-2222-3333-4444-555555555555"


def test_mbr_has_logical_partitions_and_uuids_as_linux_names_them(tmp_path: Path) -> None:
    table = read_table(make_disk(tmp_path / "disk", MBR_SCRIPT))

    assert [each.number for each in table.partitions] == [1, 2, 3, 5, 6, 7]
    assert [each.uuid for each in table.partitions][::3] == ["deadbeef-01", "deadbeef-05"]
    assert table.active == (1,)


def test_gpt_of_4096_byte_sectors_has_the_same_partitions(tmp_path: Path) -> None:
    table = read_table(make_disk(tmp_path / "disk", GPT_SCRIPT, 4096))

    expected = read_table(make_disk(tmp_path / "other", GPT_SCRIPT))
    assert table.sector_size == 4096
    assert [each.offset for each in table.partitions] == [each.offset for each in expected.partitions]
    assert [each.type for each in table.partitions] == [each.type for each in expected.partitions]
    assert [each.name for each in table.partitions] == ["", "", "boot", ""]
    assert table.faults == ()


@pytest.mark.parametrize("sector", [512, 4096])
def test_damaged_primary_is_replaced_by_its_backup_and_named(tmp_path: Path, sector: int) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT, sector))
    expected = read_table(bytes(disk))
    disk[sector + 60] ^= 1

    table = read_table(bytes(disk))

    assert table == attrs.evolve(expected, faults=table.faults)
    assert table.faults == (
        f"the GPT at offset {sector} is damaged: its checksum is wrong; its backup is valid",
    )


def test_damaged_backup_is_a_fault(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    expected = read_table(bytes(disk))
    disk[-33 * 512] ^= 1

    table = read_table(bytes(disk))

    assert table.partitions == expected.partitions
    (fault,) = table.faults
    assert fault.startswith(f"the backup is not valid: the GPT at offset {SIZE - 512} is damaged")
    assert fault.endswith("the checksum of its entries is wrong")


def test_enlarged_disk_has_its_backup_where_the_primary_says(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "disk", GPT_SCRIPT)

    assert read_table(disk + bytes(MIB)) == read_table(disk)


def test_both_copies_damaged_are_refused(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    disk[512 + 60] ^= 1
    disk[-512 + 60] ^= 1

    with pytest.raises(FormatError, match="no valid GPT: the GPT at offset 512 is damaged"):
        read(bytes(disk))


@pytest.mark.parametrize(("script", "cut"), [(GPT_SCRIPT, 4), (MBR_SCRIPT, 7)])
def test_partition_that_leaves_the_disk_is_cut_and_hides_no_other(
    tmp_path: Path, script: str, cut: int
) -> None:
    disk = make_disk(tmp_path / "disk", script)
    expected = read_table(disk)

    table = read_table(disk[: 40 * MIB])

    others = [each for each in expected.partitions if each.number != cut and each.type != "0x0F"]
    assert [each for each in table.partitions if each in others] == others
    lost = next(each for each in expected.partitions if each.number == cut)
    assert table.partitions[-1] == attrs.evolve(lost, length=40 * MIB - lost.offset)
    assert f"{lost} is not in the disk of 41943040 bytes" in table.losses
    assert table.lost[-1] == lost


def test_partition_that_begins_behind_the_disk_is_left_out(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", MBR_SCRIPT))
    struct.pack_into("<II", disk, 446 + 16 + 8, SIZE // 512, 2048)

    table = read_table(bytes(disk))

    assert [each.number for each in table.partitions] == [1, 3, 5, 6, 7]
    assert table.losses == (f"partition 2 ({MIB} bytes at offset {SIZE}) is not in the disk of {SIZE} bytes",)


@pytest.mark.parametrize("sectors", [0, 1, SIZE // 512 - 1, SIZE // 512 + 7, 0xFFFFFFFF])
@pytest.mark.parametrize("flag", [0, 0x80])
def test_protective_mbr_counts_by_type_and_first_sector(tmp_path: Path, sectors: int, flag: int) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    expected = read_table(bytes(disk))
    disk[446:462] = struct.pack("<B3xB3xII", flag, 0xEE, 1, sectors)
    (tmp_path / "disk").write_bytes(disk)

    table = read_table(bytes(disk))

    assert table == attrs.evolve(expected, active=(1,) if flag else ())
    told = json.loads(run_client("sfdisk", "--json", tmp_path / "disk"))["partitiontable"]
    assert len(told["partitions"]) == len(table.partitions)


@pytest.mark.parametrize("slot", range(4))
def test_protective_entry_may_be_any_of_the_four(tmp_path: Path, slot: int) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    expected = read_table(bytes(disk))
    disk[446:510] = bytes(64)
    disk[446 + 16 * slot : 462 + 16 * slot] = struct.pack("<B3xB3xII", 0, 0xEE, 1, 0)

    assert read_table(bytes(disk)) == expected


@pytest.mark.parametrize("start", [0, 2, 63, 2048])
def test_gpt_beside_an_entry_that_begins_elsewhere_is_ignored_as_by_linux(tmp_path: Path, start: int) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    struct.pack_into("<I", disk, 454, start)

    table = read_table(bytes(disk))

    assert (table.scheme, table.partitions) == ("gpt", ())
    assert table.faults == table.losses
    assert f"begins in sector {start}, not in sector 1" in table.faults[0]


def test_hybrid_mbr_is_named(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    expected = read_table(bytes(disk))
    disk[462:478] = struct.pack("<B3xB3xII", 0x80, 0x83, 20480, 32768)

    assert read_table(bytes(disk)) == attrs.evolve(expected, is_hybrid=True, active=(2,))


def test_overlap_is_a_fault(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    struct.pack_into("<Q", disk, 1024 + 40, 5000)  # the last sector of the first partition
    struct.pack_into("<I", disk, 512 + 88, zlib.crc32(disk[1024 : 1024 + 128 * 128]))
    struct.pack_into("<I", disk, 512 + 16, 0)
    struct.pack_into("<I", disk, 512 + 16, zlib.crc32(disk[512 : 512 + 92]))

    faults = read_table(bytes(disk)).faults

    assert "other partitions" in faults[0]
    assert faults[1].startswith("partition 1 (")
    assert faults[1].endswith(" overlap")


def test_overlap_in_an_mbr_is_a_fault(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", MBR_SCRIPT))
    first, second, *_ = read_table(bytes(disk)).partitions
    struct.pack_into("<I", disk, 446 + 12, first.length // 512 + 1)

    (fault,) = read_table(bytes(disk)).faults

    longer = attrs.evolve(first, length=first.length + 512)
    assert fault == f"{longer} and {second} overlap"
    assert f"offset {second.offset}" in fault


@pytest.mark.parametrize(
    ("count", "length", "fault"),
    [
        (2**32 - 1, 128, "has 4294967295 entries of 128 bytes, more than"),
        (128, 0, "has entries of 0 bytes; multiples of 8 from 128"),
        (128, 129, "has entries of 129 bytes; multiples of 8 from 128"),
    ],
)
def test_gpt_of_odd_entries_is_damaged(tmp_path: Path, count: int, length: int, fault: str) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", GPT_SCRIPT))
    for sector in (1, SIZE // 512 - 1):
        struct.pack_into("<II", disk, sector * 512 + 80, count, length)
        struct.pack_into("<I", disk, sector * 512 + 16, 0)
        checksum = zlib.crc32(disk[sector * 512 : sector * 512 + 92])
        struct.pack_into("<I", disk, sector * 512 + 16, checksum)
    with pytest.raises(FormatError, match=f"the GPT at offset 512 {fault}"):
        read_table(bytes(disk))


def test_boot_sectors_without_partitions_have_no_table(tmp_path: Path) -> None:
    run_client("mkfs.vfat", "-C", tmp_path / "fat", "4096")
    assert read((tmp_path / "fat").read_bytes()) is None
    assert read(b"\xfa\x31\xc0".ljust(510, b"\0") + b"\x55\xaa" + bytes(SIZE)) is None
    assert read(b"\xfa\x31\xc0".ljust(510, b"\xcc") + b"\x55\xaa" + bytes(SIZE)) is None
    assert read(bytes(SIZE)) is None
    assert read(b"") is None


def test_cycle_of_logical_partitions_is_a_fault(tmp_path: Path) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", MBR_SCRIPT))
    extended = read_table(bytes(disk)).partitions[2]
    struct.pack_into("<I", disk, extended.offset + 462 + 8, 0)  # the next sector is the first one

    table = read_table(bytes(disk))

    assert [each.number for each in table.partitions] == [1, 2, 3, 5]
    assert table.losses[0].startswith("the list of logical partitions is damaged")


@pytest.mark.parametrize("sector", [0, 1])
def test_extended_partition_without_its_signature_hides_no_other(tmp_path: Path, sector: int) -> None:
    disk = bytearray(make_disk(tmp_path / "disk", MBR_SCRIPT))
    expected = read_table(bytes(disk)).partitions
    place = expected[2 + sector].offset if sector == 0 else expected[4].offset - MIB
    disk[place : place + 512] = bytes(512)

    table = read_table(bytes(disk))

    assert table.partitions == expected[: 3 + sector]
    assert len(table.losses) == 1


@pytest.mark.parametrize(("script", "sector"), [(GPT_SCRIPT, 512), (GPT_SCRIPT, 4096), (MBR_SCRIPT, 512)])
def test_altered_bytes_give_the_same_gpt_or_an_error(tmp_path: Path, script: str, sector: int) -> None:
    disk = make_disk(tmp_path / "disk", script, sector)
    expected = read_table(disk)
    used = [*range(20480), *range(SIZE - 20480, SIZE - 20)]
    used += [each.offset - MIB + byte for each in expected.partitions[3:] for byte in range(440, 510)]

    @given(st.sampled_from(used), st.binary(min_size=1, max_size=20))
    def alter(position: int, data: bytes) -> None:
        def read_at(offset: int, length: int) -> bytes:
            block = bytearray(disk[offset : offset + length])
            for index, byte in enumerate(data, start=position - offset):
                if 0 <= index < length:
                    block[index] = byte
            return bytes(block)

        try:
            table = read_partitions(read_at, SIZE)
        except FormatError:
            return
        if table and expected.scheme == table.scheme == "gpt" and not table.losses:
            assert table.partitions == expected.partitions

    alter()
