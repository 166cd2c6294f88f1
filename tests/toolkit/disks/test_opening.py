from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import UnsafeImage
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.disks.opening import INPUT_FORMATS, assess, open_image
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.corpus.images import DISK_BYTES, MIB, convert, disk_content, image, write_host_file
from tests.toolkit.corpus.others import ovf, stream_vmdk, tar
from tests.toolkit.corpus.qcow2 import backing_file, data_file
from tests.toolkit.corpus.vmdk import flat_vmdk, stream_with_footer

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.formats.reading import ReadAt

VALID = [
    *(("qcow2", f"cluster_size={size}") for size in (512, 1024, 4096, 65536, 2 * MIB)),
    ("qcow2", "compat=0.10"),
    ("qcow2", "compat=1.1,lazy_refcounts=on"),
    ("qcow2", "refcount_bits=1"),
    ("qcow2", "refcount_bits=64"),
    ("qcow2", "extended_l2=on"),
    ("qcow2", "extended_l2=on,cluster_size=16384"),
    ("qcow2", "compression_type=zstd"),
    *(("qcow2", f"preallocation={kind}") for kind in ("metadata", "falloc", "full")),
    ("vmdk", "subformat=monolithicSparse"),
    ("vmdk", "subformat=monolithicSparse,compat6=on"),
    ("vmdk", "subformat=streamOptimized"),
    ("vmdk", "subformat=streamOptimized,adapter_type=lsilogic,hwversion=7"),
    ("vpc", "subformat=fixed"),
    ("vpc", "subformat=fixed,force_size=on"),
    ("vpc", "subformat=dynamic"),
    ("vpc", "subformat=dynamic,force_size=on"),
    ("vhdx", ""),
    *(("vhdx", f"block_size={size}") for size in ("1M", "2M", "8M", "32M", "256M")),
    ("vhdx", "subformat=fixed"),
    ("vhdx", "log_size=4M"),
]
NAMES = {"vpc": "vhd"}


def stored(directory: Path, data: bytes) -> Path:
    path = directory / "image"
    path.write_bytes(data)
    return path


def read_all(read_at: ReadAt, size: int) -> bytes:
    return b"".join(read_at(offset, min(MIB, size - offset)) for offset in range(0, size, MIB))


def check_accepted(path: Path, disk_format: str) -> None:
    """Check that an image is accepted, and that our reader and qemu-img find `disk_content` in it."""
    expected = disk_content()
    with open_image(path, disk_format) as opened:
        size = opened.disk.virtual_size
        assert size >= DISK_BYTES
        content = read_all(opened.disk.read_at, size)
        assert content == expected.ljust(size, b"\0")
        target = path.with_name("raw")
        command = [needs_client("qemu-img"), "convert", "-O", "raw", opened.source_for_qemu, str(target)]
        subprocess.run(command, check=True, pass_fds=[opened.descriptor])
        assert sha256(target.read_bytes()).hexdigest() == sha256(content).hexdigest()


@pytest.mark.parametrize(("disk_format", "options"), VALID)
def test_images_of_qemu_with_any_option_are_accepted(disk_format: str, options: str, tmp_path: Path) -> None:
    check_accepted(stored(tmp_path, image(disk_format, options)), NAMES.get(disk_format, disk_format))


@pytest.mark.parametrize(
    "options", [options for name, options in VALID if name == "qcow2" and "preallocation" not in options]
)
def test_compressed_images_are_accepted(options: str, tmp_path: Path) -> None:
    check_accepted(stored(tmp_path, image("qcow2", options, compressed=True)), "qcow2")


def test_qcow2_with_internal_snapshots_and_a_bitmap_is_accepted(tmp_path: Path) -> None:
    path = stored(tmp_path, image("qcow2"))
    run_client("qemu-img", "snapshot", "-c", "first", path)
    run_client("qemu-io", "-f", "qcow2", "-c", "write -P 0 1M 64k", path)
    run_client("qemu-img", "snapshot", "-c", "second", path)
    run_client("qemu-img", "bitmap", "--add", path, "bitmap")
    check_accepted(path, "qcow2")


def test_dirty_qcow2_is_accepted(tmp_path: Path) -> None:
    data = bytearray(image("qcow2", "lazy_refcounts=on"))
    data[79] |= 1
    check_accepted(stored(tmp_path, bytes(data)), "qcow2")


def test_stream_with_a_footer_is_accepted(tmp_path: Path) -> None:
    check_accepted(stored(tmp_path, stream_with_footer()), "vmdk")


def test_ova_is_opened_as_its_vmdk(tmp_path: Path) -> None:
    path = stored(tmp_path, tar(("vm.ovf", ovf("disk.vmdk")), ("disk.vmdk", stream_vmdk())))
    check_accepted(path, "ova")
    with open_image(path) as opened:
        assert opened.disk.format is DiskFormat.VMDK


def boot_sector(*partitions: bytes) -> bytes:
    return b"\xeb\x3c".ljust(446, b"\x90") + b"".join(partitions).ljust(64, b"\0") + b"\x55\xaa"


RAW = {
    "zeros": bytes(MIB),
    "boot sector without a partition": boot_sector() + bytes(MIB),
    "partition with an odd flag": boot_sector(b"\x7f" + bytes(15)) + bytes(MIB),
    "hybrid GPT": boot_sector(b"\x80\0\2\0\xee".ljust(16, b"\1"), b"\0\0\2\0\x0c".ljust(16, b"\1"))
    + bytes(MIB),
    "ISO": bytes(32768) + b"\1CD001\1" + bytes(MIB),
    "bootable ISO": boot_sector().ljust(32768, b"\0") + b"\1CD001\1" + bytes(MIB),
    "text": b"# a comment\n\nnothing else\n" * 1000,
    "one byte": b"x",
    "not whole sectors": b"\xeb" * 1000,
}


@pytest.mark.parametrize("name", RAW)
def test_raw_disks_are_accepted(name: str, tmp_path: Path) -> None:
    path = stored(tmp_path, RAW[name])
    for declared in (None, "raw"):
        with open_image(path, declared) as opened:
            assert opened.disk.format is DiskFormat.RAW
            assert opened.disk.virtual_size == len(RAW[name])
            assert opened.disk.read_at(0, len(RAW[name])) == RAW[name]


def test_formats_that_can_be_declared() -> None:
    assert INPUT_FORMATS == ("raw", "qcow2", "vmdk", "vhd", "vhdx", "ova")


@pytest.mark.parametrize("attack", [backing_file, flat_vmdk, data_file])
def test_careless_qemu_img_leaks_a_file_of_the_host(
    attack: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    """The control: the attacks that are refused elsewhere do what they are for."""
    host = write_host_file(tmp_path)
    path, target = attack(tmp_path, host), tmp_path / "target"
    declared = ["-f", "vmdk"] if attack is flat_vmdk else []
    run_client("qemu-img", "convert", *declared, "-O", "raw", path, target)
    assert target.read_bytes() == host.read_bytes()


def test_fixed_vhd_of_another_maker_has_the_size_of_its_footer(tmp_path: Path) -> None:
    """The driver of qemu takes the size of this one from its geometry, which is less."""
    data = bytearray(image("vpc", "subformat=fixed,force_size=on"))
    footer = memoryview(data)[-512:]
    footer[28:32] = b"vbox"
    footer[56:60] = b"\0\x10\x04\x11"  # 16 cylinders of 4 heads of 17 sectors
    footer[64:68] = bytes(4)
    footer[64:68] = (~sum(footer) & 0xFFFFFFFF).to_bytes(4, "big")
    check_accepted(stored(tmp_path, bytes(data)), "vhd")


def test_file_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, disk_content())
    os.utime(path, ns=(0, 0))

    def change() -> None:
        with open_image(path) as opened:
            opened.check_unchanged()
            path.write_bytes(disk_content())

    with pytest.raises(UnsafeImage, match="the file changed while it was read"):
        change()


def test_file_that_is_replaced_while_it_is_open_is_read_to_its_end(tmp_path: Path) -> None:
    path = stored(tmp_path, image("qcow2"))
    with open_image(path) as opened:
        other = backing_file(tmp_path, write_host_file(tmp_path))
        other.replace(path)
        assert read_all(opened.disk.read_at, DISK_BYTES) == disk_content()


def test_larger_disk_than_the_caller_allows_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, image("qcow2"))
    with open_image(path, max_virtual_bytes=DISK_BYTES):
        pass
    limit = DISK_BYTES - 1
    with (
        pytest.raises(UnsafeImage, match=f"claims {DISK_BYTES} bytes; the limit is {limit}"),
        open_image(path, max_virtual_bytes=limit),
    ):
        pass


@pytest.mark.parametrize("head", [b"", b"vhdxfile", b"QFI\xfb", b"KDMV", b"conectix"])
def test_sparse_file_of_8_eib_is_refused_at_once(head: bytes) -> None:
    descriptor = os.memfd_create("sparse")
    try:
        os.write(descriptor, head)
        os.truncate(descriptor, (1 << 63) - 4096)
        assert assess(descriptor).reasons
    finally:
        os.close(descriptor)


def test_every_descriptor_is_closed(tmp_path: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    with open_image(stored(tmp_path, disk_content())):
        pass
    with pytest.raises(UnsafeImage), open_image(tmp_path):
        pass
    assert count() == before


def test_library_prints_nothing(tmp_path: Path) -> None:
    """oslo.utils logs a warning for each failed check, and standard error is for progress."""
    path = backing_file(tmp_path, write_host_file(tmp_path))
    program = (
        "import os; from image_service.toolkit.disks.opening import assess;"
        f"assert assess(os.open({str(path)!r}, os.O_RDONLY)).reasons"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout + done.stderr == b""


MUTATED = [
    ("qcow2", "cluster_size=512"),
    ("qcow2", "extended_l2=on"),
    ("vmdk", "subformat=monolithicSparse"),
    ("vmdk", "subformat=streamOptimized"),
    ("vpc", "subformat=dynamic,force_size=on"),
    ("vhdx", "block_size=1M"),
]
SMALL_DISK = bytes(range(256)) * 256


@pytest.mark.parametrize("examples", [25, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("disk_format", "options"), MUTATED)
def test_mutated_image_is_refused_or_read_as_qemu_reads_it(
    disk_format: str, options: str, examples: int, tmp_path: Path
) -> None:
    original = convert(SMALL_DISK, disk_format, options)
    places = [index for index in range(0, len(original), 8) if original[index : index + 8] != bytes(8)]
    path, target = tmp_path / "mutated", tmp_path / "target"
    qemu_img = needs_client("qemu-img")

    @settings(max_examples=examples, deadline=None)
    @given(
        changes=st.lists(
            st.tuples(
                st.sampled_from(places[:64] + places[-8:]),
                st.integers(0, 7),
                st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])),
            ),
            min_size=1,
            max_size=4,
        ),
        length=st.one_of(st.just(len(original)), st.integers(0, len(original))),
    )
    def check(changes: list[tuple[int, int, int]], length: int) -> None:
        data = bytearray(original)
        for place, byte, value in changes:
            if place + byte < len(data):
                data[place + byte] = value
        path.write_bytes(data[:length])
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assessment = assess(descriptor)
        finally:
            os.close(descriptor)
        if assessment.reasons or assessment.content == "raw":
            return
        with open_image(path) as opened:
            size = opened.disk.virtual_size
            if size > 16 * MIB:
                return
            content = read_all(opened.disk.read_at, size)
            command = [qemu_img, "convert", "-O", "raw", opened.source_for_qemu, str(target)]
            done = subprocess.run(command, check=False, capture_output=True, pass_fds=[opened.descriptor])
        if done.returncode == 0:
            assert target.read_bytes() == content.ljust(-(-size // 512) * 512, b"\0")

    check()
