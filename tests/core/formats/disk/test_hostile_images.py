"""Images that need another file, read what is not their own, or cost more than they are worth."""

from __future__ import annotations

import resource
import struct
import tempfile
import tracemalloc
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats.crc32c import crc32c
from image_service.core.formats.disk.model import MAX_DISK_BYTES, DiskFormat, check_structure
from image_service.core.formats.disk.reading_disks import read_disk
from tests.acceptance.clients import run_client
from tests.core.formats.disk.images import Write, disk_of, make_image, raw_form
from tests.core.formats.reading import MeteredReader, reader
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.formats.disk.model import VirtualDisk

QCOW2, VMDK, VHD, VHDX = DiskFormat.QCOW2, DiskFormat.VMDK, DiskFormat.VHD, DiskFormat.VHDX
SIZE = 3 << 20
CLUSTER = 65536


@cache
def sample(disk_format: DiskFormat, options: str = "", size: int = SIZE) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        writes = [Write(0, CLUSTER, 7), Write(10 * CLUSTER, CLUSTER, 9)]
        return make_image(Path(directory) / "disk", disk_format, size, options, writes).read_bytes()


def changed(image: bytes, *changes: tuple[int, bytes]) -> bytes:
    result = bytearray(image)
    for offset, data in changes:
        result[offset : offset + len(data)] = data
    return bytes(result)


def checked(disk_format: DiskFormat, image: bytes) -> VirtualDisk:
    disk = read_disk(disk_format, reader(image), len(image))
    check_structure(disk)
    return disk


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


# qcow2. The tables of `sample`: refcount table in cluster 1, its block in 2, L1 table in 3, L2 table in 4.

L1, L2 = 3 * CLUSTER, 4 * CLUSTER
COPIED = 1 << 63


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(8, u64(512)), (16, u32(11))], "has a backing file"),
        ([(32, u32(1))], r"is encrypted \(method 1\)"),
        ([(72, u64(2))], "marked as corrupt"),
        ([(72, u64(4))], "external data file"),
        ([(72, u64(1 << 40))], "unknown incompatible features 0x10000000000"),
        ([(72, u64(8))], "has the compression 0"),
        ([(104, b"\1")], "has the compression 1"),
        ([(20, u32(8))], r"clusters of 2\^8 bytes"),
        ([(20, u32(22))], r"clusters of 2\^22 bytes"),
        ([(20, u32(2**32 - 1))], "clusters of"),
        ([(24, u64(2**63))], f"claims {2**63} bytes"),
        ([(24, u64(2**64 - 1))], f"{MAX_DISK_BYTES} are supported"),
        ([(24, u64(MAX_DISK_BYTES))], f"a disk of {MAX_DISK_BYTES} bytes needs 131072"),
        ([(36, u32(2**32 - 1))], "L1 table has 34359738360 bytes"),
        ([(36, u32(0))], "L1 table has 0 entries"),
        ([(40, u64(2**63))], "leaves the file"),
        ([(40, u64(512))], "no cluster of 65536 bytes begins"),
        ([(40, u64(0))], "L1 table overlaps"),
        ([(48, u64(0))], "refcount table overlaps"),
        ([(48, u64(L1))], "refcount table overlaps"),
        ([(56, u32(2**31))], "refcount table has"),
        ([(60, u32(65537))], "snapshot table has"),
        ([(60, u32(1)), (64, u64(L2))], "overlaps another"),
        ([(96, u32(7))], r"refcounts of 2\^7 bits"),
        ([(100, u32(103))], "header has 103 bytes"),
        ([(100, u32(CLUSTER + 8))], "header has 65544 bytes"),
        ([(4, u32(4))], "version 4"),
        ([(0, b"QFI\xfa")], "no qcow2 image"),
        ([(CLUSTER, u64(L2))], "overlaps another"),  # a refcount block
        ([(CLUSTER + 8, u64(2 * CLUSTER))], "a refcount block overlaps"),
        ([(CLUSTER + 8, u64(2**63))], "a refcount block is outside the file"),
        ([(L1, u64(COPIED | L1))], "L2 table of L1 entry 0 overlaps"),
        ([(L1, u64(COPIED))], "L1 entry 0 is damaged"),
        ([(L1, u64(COPIED | L2 | 512))], "L1 entry 0 is damaged"),
        ([(L1, u64(L2 | 1))], "L1 entry 0 is damaged"),
        ([(L1, u64(1 << 50))], "outside the file"),
        ([(L2, u64(COPIED | L2))], "cluster of offset 0 overlaps"),
        ([(L2, u64(COPIED | L1))], "cluster of offset 0 overlaps"),
        ([(L2, u64(COPIED | CLUSTER))], "cluster of offset 0 overlaps"),
        ([(L2, u64(COPIED | 2 * CLUSTER))], "cluster of offset 0 overlaps"),
        ([(L2, u64(COPIED | 6 * CLUSTER))], "cluster of offset 655360 overlaps"),
        ([(L2, u64(COPIED | 6 * CLUSTER | 1))], "cluster of offset 655360 overlaps"),
        ([(L2, u64(COPIED | 1 << 50))], "leaves the file|outside the file"),
        ([(L2, u64(COPIED | 5 * CLUSTER | 512))], "L2 entry of offset 0 is damaged"),
        ([(L2, u64(COPIED | 5 * CLUSTER | 2))], "L2 entry of offset 0 is damaged"),
        ([(L2, u64(COPIED | 5 * CLUSTER | 1 << 60))], "L2 entry of offset 0 is damaged"),
        ([(L2, u64(1 << 62 | 2**54 - 1))], "compressed cluster of offset 0 is damaged"),
        ([(L2, u64(1 << 62 | 5 * CLUSTER | COPIED))], "compressed cluster of offset 0 is damaged"),
        ([(L2, u64(1 << 62 | L2))], "compressed cluster of offset 0 overlaps"),
        ([(L2, u64(1 << 62))], "compressed cluster of offset 0 is damaged"),
    ],
)
def test_hostile_qcow2_is_refused(changes: list[tuple[int, bytes]], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        checked(QCOW2, changed(sample(QCOW2), *changes))


def test_two_l1_entries_cannot_share_a_table() -> None:
    image = sample(QCOW2, "cluster_size=512")
    (l1_offset,) = struct.unpack_from(">Q", image, 40)
    first = image[l1_offset : l1_offset + 8]
    with pytest.raises(FormatError, match="the L2 table of L1 entry 1 overlaps"):
        checked(QCOW2, changed(image, (l1_offset + 8, first)))


def test_cluster_stored_and_compressed_is_refused() -> None:
    image = sample(QCOW2)
    with pytest.raises(FormatError, match="the cluster of offset 655360 overlaps"):
        checked(QCOW2, changed(image, (L2, u64(1 << 62 | 6 * CLUSTER + 100))))


@pytest.mark.parametrize("name", ["dirty", "lazy", "v2"])
def test_harmless_qcow2_is_read(name: str) -> None:
    """A dirty image has wrong refcounts, which readers do not need."""
    options = {"v2": "compat=0.10"}.get(name, "lazy_refcounts=on")
    image = sample(QCOW2, options)
    disk = checked(QCOW2, changed(image, (72, u64(1))) if name == "dirty" else image)
    assert disk.subformat == ("v2" if name == "v2" else "v3")
    assert disk.read_at(0, CLUSTER) == b"\7" * CLUSTER


def test_snapshots_inside_are_ignored(tmp_path: Path) -> None:
    path = make_image(tmp_path / "disk", QCOW2, SIZE, "", [Write(0, CLUSTER, 7), Write(CLUSTER, 512, 8)])
    run_client("qemu-img", "snapshot", "-c", "before", path)
    run_client("qemu-io", "-f", "qcow2", "-c", "write -P 9 0 512", path)
    disk = disk_of(path, QCOW2)
    assert check_structure(disk) == 2 * CLUSTER
    assert disk.read_at(0, SIZE) == raw_form(path, "qcow2")


@pytest.mark.parametrize("cluster", ["64K", soaked("2M")])
def test_qcow2_that_claims_64_tib_is_checked_at_once(tmp_path: Path, cluster: str) -> None:
    """The time is that of reading its tables, the memory that of two of them and a byte for each cluster."""
    options = f"cluster_size={cluster}"
    path = make_image(tmp_path / "disk", QCOW2, MAX_DISK_BYTES, options, [Write(1 << 45, 4096, 7)])
    image = path.read_bytes()
    assert len(image) < 18 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    disk = read_disk(QCOW2, MeteredReader(image, 16 << 20), len(image))
    assert check_structure(disk) > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 5, "it takes a tenth of a second"
    tracemalloc.start()
    try:
        assert check_structure(disk) > 0
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_sparse_file_of_too_many_clusters_is_refused() -> None:
    image = sample(QCOW2)
    disk = read_disk(QCOW2, reader(image), 1 << 50)
    with pytest.raises(FormatError, match="blocks of 65536 bytes, more than"):
        check_structure(disk)


# VMDK

HEADER_DIRECTORY = 56


def descriptor_at(image: bytes) -> int:
    return image.index(b"# Disk DescriptorFile")


def with_text(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(image: bytes) -> bytes:
        start = descriptor_at(image)
        text = image[start : start + 2048]
        assert old in text
        return changed(image, (start, text.replace(old, new)[:2048]))

    return change


def le64(offset: int, value: int) -> Callable[[bytes], bytes]:
    return lambda image: changed(image, (offset, struct.pack("<Q", value)))


def directory_entry(value: int) -> Callable[[bytes], bytes]:
    def change(image: bytes) -> bytes:
        (directory,) = struct.unpack_from("<Q", image, HEADER_DIRECTORY)
        return changed(image, (directory * 512, struct.pack("<I", value)))

    return change


def grain_entry(index: int, value: int | None) -> Callable[[bytes], bytes]:
    """Set an entry of the first grain table; None: to that of entry 0."""

    def change(image: bytes) -> bytes:
        (directory,) = struct.unpack_from("<Q", image, HEADER_DIRECTORY)
        (table,) = struct.unpack_from("<I", image, directory * 512)
        (first,) = struct.unpack_from("<I", image, table * 512)
        entry = first if value is None else value
        return changed(image, (table * 512 + 4 * index, struct.pack("<I", entry)))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda image: image[descriptor_at(image) :], "only a descriptor"),
        (with_text(b"monolithicSparse", b"monolithicFlat"), "of type 'monolithicFlat'"),
        (with_text(b"monolithicSparse", b"twoGbMaxExtentSparse"), "of type 'twoGbMaxExtentSparse'"),
        (with_text(b"SPARSE", b"FLAT"), "1 extents; one, 6144 SPARSE"),
        (with_text(b'"disk"', b'"/etc/passwd"'), "a path in its name"),
        (with_text(b'"disk"', b'"..\\x"'), "a path in its name"),
        (with_text(b"RW 6144", b"RW 6145"), "1 extents; one, 6144 SPARSE"),
        (with_text(b"# Extent", b'RW 8 FLAT "x" 0\n#'), "2 extents"),
        (with_text(b"parentCID=ffffffff", b"parentCID=12345678"), "has a parent"),
        (with_text(b"version=1", b'parentFileNameHint="x"'), "has a parent"),
        (le64(12, 0), "capacity of 0 sectors"),
        (le64(12, 1 << 60), f"{MAX_DISK_BYTES} are supported"),
        (le64(12, 1 << 37), f"claims {1 << 46} bytes|descriptor has"),
        (le64(20, 4), "grains of 4 sectors"),
        (le64(20, 8192), "grains of 8192 sectors"),
        (le64(28, 0), "extent of a split image"),
        (le64(28, 1 << 62), "leaves the file"),
        (le64(36, 1 << 40), "65536 are supported"),
        (le64(HEADER_DIRECTORY, 1 << 62), "leaves the file"),
        (le64(HEADER_DIRECTORY, (1 << 64) - 1), "no footer"),
        (lambda image: changed(image, (44, struct.pack("<I", 1 << 30))), "tables of 1073741824 entries"),
        (lambda image: changed(image, (4, struct.pack("<I", 9))), "version 9"),
        (lambda image: changed(image, (8, struct.pack("<I", 1 << 16))), "which differ"),
        (lambda image: changed(image, (73, b"\n \n\n")), "as text"),
        (directory_entry(0xFFFFFFFF), "leaves the metadata"),
        (grain_entry(1, 1), "grain 1 is at offset 512, in the metadata"),
        (grain_entry(1, 0xFFFFFFFF), "leaves the file"),
        (grain_entry(1, None), "grain 1 overlaps another"),
        (grain_entry(1, 129), "overlaps another|leaves the file"),
    ],
)
def test_hostile_vmdk_is_refused(change: Callable[[bytes], bytes], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        checked(VMDK, change(sample(VMDK, "subformat=monolithicSparse")))


@cache
def stream() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        raw = Path(directory) / "raw"
        raw.write_bytes(bytes(CLUSTER) + b"\7" * 3 * CLUSTER + b"abc" * 171)
        run_client(
            "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, raw.with_name("v")
        )
        return raw.with_name("v").read_bytes()


def with_footer(image: bytes) -> bytes:
    """Return an image as VMware's programs write it: the directory is in a footer."""
    header = image[:512]
    marker = struct.pack("<QII496x", 1, 0, 3)
    return changed(image, (HEADER_DIRECTORY, b"\xff" * 8)) + marker + header + bytes(512)


def test_stream_with_a_footer_is_read(tmp_path: Path) -> None:
    (tmp_path / "vmdk").write_bytes(with_footer(stream()))
    disk = checked(VMDK, with_footer(stream()))
    assert disk.subformat == "streamOptimized"
    assert disk.read_at(0, 1 << 30) == raw_form(tmp_path / "vmdk", "vmdk")
    for part in (0, 1):  # the capacities differ
        image = with_footer(stream())
        place = 12 if part == 0 else len(image) - 1024 + 12
        with pytest.raises(FormatError, match="differs from the header"):
            checked(VMDK, changed(image, (place, struct.pack("<Q", 4096))))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (grain_entry(1, 0), None),
        (grain_entry(2, 0xFFFFFFFF), "ends too soon"),
        (grain_entry(0, 1), "in the metadata"),
    ],
)
def test_hostile_stream_is_refused(change: Callable[[bytes], bytes], reason: str | None) -> None:
    image = change(stream())
    if reason is None:
        assert checked(VMDK, image).read_at(CLUSTER, CLUSTER) == bytes(CLUSTER)
    else:
        with pytest.raises(FormatError, match=reason):
            checked(VMDK, image)


def test_two_grains_cannot_be_the_same_compressed_data() -> None:
    image = stream()
    (directory,) = struct.unpack_from("<Q", image, HEADER_DIRECTORY)
    (table,) = struct.unpack_from("<I", image, directory * 512)
    (second,) = struct.unpack_from("<I", image, table * 512 + 4)
    with pytest.raises(FormatError, match=r"is of sector 128, and has .* sector 256, "):
        checked(VMDK, grain_entry(2, second)(image))


def test_shared_table_of_zero_grains_costs_nothing() -> None:
    """A directory of 8 MiB whose entries all refer to one table of a disk of 64 TiB."""
    image = sample(VMDK, "subformat=monolithicSparse")
    text = image[descriptor_at(image) :].replace(b"RW 6144 ", b"RW %d " % (1 << 37))[:2048]
    directory, table = 256, 100
    image = changed(
        image,
        (descriptor_at(image), text),
        (8, struct.pack("<IQ", 7, 1 << 37)),  # the flag that 1 is a grain of zeros; the capacity
        (HEADER_DIRECTORY, struct.pack("<QQ", directory, 1 << 20)),
        (table * 512, struct.pack("<I", 1) * 512),
    )
    whole = image[: directory * 512].ljust(directory * 512, b"\0") + struct.pack("<I", table) * (1 << 21)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert check_structure(read_disk(VMDK, MeteredReader(whole, 16 << 20), len(whole))) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10, "it takes a quarter of a second"


# VHD


def with_footers(image: bytes, *changes: tuple[int, bytes], ends: tuple[int, ...] = (0, -512)) -> bytes:
    """Return a VHD with changed footers of right checksums."""
    footer = bytearray(changed(image[-512:], *changes))
    footer[64:68] = bytes(4)
    footer[64:68] = u32(~sum(footer) & 0xFFFFFFFF)
    return changed(image, *((end % len(image), bytes(footer)) for end in ends))


def with_dynamic_header(image: bytes, *changes: tuple[int, bytes]) -> bytes:
    header = bytearray(changed(image[512:1536], *changes))
    header[36:40] = bytes(4)
    header[36:40] = u32(~sum(header) & 0xFFFFFFFF)
    return changed(image, (512, bytes(header)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda image: with_footers(image, (60, u32(4))), "differencing disk"),
        (lambda image: with_footers(image, (60, u32(5))), "type 5"),
        (lambda image: with_footers(image, (48, u64(1 << 63))), f"{MAX_DISK_BYTES} are supported"),
        (lambda image: with_footers(image, (48, u64(SIZE + 1))), "cannot have a disk"),
        (lambda image: with_footers(image, (48, u64(5 << 20))), "3 are needed for a disk of"),
        (lambda image: with_footers(image, (48, u64(1 << 20)), ends=(0,)), "differs from its copy"),
        (lambda image: with_footers(image, (12, u32(0x20000))), "not of VHD 1.0"),
        (lambda image: with_footers(image, (16, u64((1 << 64) - 1))), "leaves the file before its footer"),
        (lambda image: with_footers(image, (16, u64(0))), "no dynamic header"),
        (lambda image: changed(image, (600, b"x")), "states the checksum"),
        (lambda image: with_dynamic_header(image, (16, u64(512))), "areas overlap"),
        (lambda image: with_dynamic_header(image, (16, u64(1 << 63))), "leaves the file"),
        (lambda image: with_dynamic_header(image, (28, u32(1))), "has 1 entries; 2 are needed"),
        (lambda image: with_dynamic_header(image, (28, u32(0xFFFFFFFF))), "2097152 are supported"),
        (lambda image: with_dynamic_header(image, (32, u32(0))), "blocks of 0 bytes"),
        (lambda image: with_dynamic_header(image, (32, u32(3 << 20))), "blocks of 3145728 bytes"),
        (lambda image: changed(image, (1536, u32(0))), "block 0 at offset 0 overlaps the footer's copy"),
        (lambda image: changed(image, (1536, u32(3))), "block 0 at offset 1536 overlaps the table"),
        (lambda image: changed(image, (1540, image[1536:1540])), "block 1 overlaps another"),
        (lambda image: changed(image, (1540, u32(0x7FFFFFFF))), "leaves the file before its footer"),
    ],
)
def test_hostile_vhd_is_refused(change: Callable[[bytes], bytes], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        checked(VHD, change(sample(VHD, "subformat=dynamic,force_size=on")))


def test_fixed_disk_that_begins_with_a_footer_is_refused() -> None:
    """A reader that looks at the start first, as qemu does, would find tables of the guest there."""
    image = sample(VHD, "subformat=fixed,force_size=on")
    with pytest.raises(FormatError, match="begins with a footer"):
        checked(VHD, changed(image, (0, sample(VHD, "subformat=dynamic")[:512])))


# VHDX

BAT_GUID = "6677c22d23f600429d64115e9bfd4a08"
METADATA_GUID = "06a27c8b90479a4bb8fe575f050f886e"
PARAMETERS_GUID = "3767a1ca36fa434db3b633f0aa44e76b"
DISK_SIZE_GUID = "2442a52f1bcd7648b2115dbed83bf4b8"


def with_headers(image: bytes, *changes: tuple[int, bytes]) -> bytes:
    for offset in (CLUSTER, 2 * CLUSTER):
        header = bytearray(changed(image[offset : offset + 4096], *changes))
        header[4:8] = bytes(4)
        header[4:8] = struct.pack("<I", crc32c(bytes(header)))
        image = changed(image, (offset, bytes(header)))
    return image


def with_regions(image: bytes, guid: str, field: int, value: bytes) -> bytes:
    """Return a VHDX with a field of the region tables' entry changed, checksums right."""
    for offset in (3 * CLUSTER, 4 * CLUSTER):
        table = bytearray(image[offset : offset + CLUSTER])
        place = table.index(bytes.fromhex(guid)) + field
        table[place : place + len(value)] = value
        table[4:8] = bytes(4)
        table[4:8] = struct.pack("<I", crc32c(bytes(table)))
        image = changed(image, (offset, bytes(table)))
    return image


def region_at(image: bytes, guid: str) -> int:
    place = image.index(bytes.fromhex(guid), 3 * CLUSTER)
    return int(struct.unpack_from("<Q", image, place + 16)[0])


def with_item(image: bytes, guid: str, value: bytes, skip: int = 0) -> bytes:
    metadata = region_at(image, METADATA_GUID)
    place = image.index(bytes.fromhex(guid), metadata)
    (offset,) = struct.unpack_from("<I", image, place + 16)
    return changed(image, (metadata + offset + skip, value))


def with_block(image: bytes, index: int, entry: int) -> bytes:
    return changed(image, (region_at(image, BAT_GUID) + 8 * index, struct.pack("<Q", entry)))


def first_block(image: bytes) -> int:
    return int(struct.unpack_from("<Q", image, region_at(image, BAT_GUID))[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda image: with_headers(image, (48, b"\1")), "log of the VHDX image has to be replayed"),
        (lambda image: with_headers(image, (66, b"\2")), "version 2; 1 is supported"),
        (lambda image: with_headers(image, (72, struct.pack("<Q", CLUSTER))), "areas overlap"),
        (lambda image: with_headers(image, (72, struct.pack("<Q", 1 << 62))), "log is outside the file"),
        (lambda image: changed(image, (CLUSTER + 9, b"x"), (2 * CLUSTER + 9, b"x")), "no valid header"),
        (
            lambda image: changed(image, (3 * CLUSTER + 9, b"x"), (4 * CLUSTER + 9, b"x")),
            "no valid region table",
        ),
        (
            lambda image: with_regions(with_regions(image, BAT_GUID, 28, b"\1"), BAT_GUID, 0, b"\0"),
            "requires the unknown region",
        ),
        (
            lambda image: with_regions(image, BAT_GUID, 0, bytes(16) + b"\0" * 12 + bytes(4)),
            "lacks the region",
        ),
        (lambda image: with_regions(image, BAT_GUID, 16, struct.pack("<Q", 1 << 62)), "leaves the file"),
        (lambda image: with_regions(image, BAT_GUID, 16, struct.pack("<Q", 0)), "areas overlap"),
        (lambda image: with_regions(image, BAT_GUID, 16, struct.pack("<Q", 512)), "not in whole MiB"),
        (
            lambda image: with_regions(image, BAT_GUID, 24, struct.pack("<I", 0)),
            "needs a block allocation table",
        ),
        (lambda image: with_item(image, PARAMETERS_GUID, b"\2", 4), "differencing disk"),
        (lambda image: with_item(image, PARAMETERS_GUID, struct.pack("<I", 512)), "blocks of 512 bytes"),
        (lambda image: with_item(image, DISK_SIZE_GUID, b"\1"), "sectors of 512 bytes"),
        (lambda image: with_item(image, DISK_SIZE_GUID, b"\xff" * 8), "bytes has sectors of|are supported"),
        (
            lambda image: with_item(image, DISK_SIZE_GUID, struct.pack("<Q", 1 << 46)),
            "block allocation table of",
        ),
        (lambda image: with_block(image, 1, first_block(image)), "block 1 overlaps another"),
        (lambda image: with_block(image, 1, 6), "block 1 is at offset 0, where the headers are"),
        (lambda image: with_block(image, 1, 1 << 62 | 6), "leaves the file"),
        (lambda image: with_block(image, 1, 7), "entry 1 of block 1 is damaged"),
        (lambda image: with_block(image, 1, 1 << 19), "entry 1 of block 1 is damaged"),
        (lambda image: with_block(image, 1, region_at(image, BAT_GUID) | 6), "block 1 overlaps another"),
    ],
)
def test_hostile_vhdx_is_refused(change: Callable[[bytes], bytes], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        checked(VHDX, change(sample(VHDX, "block_size=1M")))
