from __future__ import annotations

import bz2
import gzip
import lzma
import random
import resource
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats import initrd_stream
from image_service.core.formats.byte_stream import ByteStream
from image_service.core.formats.initrd import read_archives
from image_service.core.formats.initrd_stream import MAX_MEMBERS, stream_initrd
from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.reading import reader

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEBIBYTE = 1024 * 1024
TRAILER = write_archive([])
DRIVER = "usr/lib/modules/6.1.0/kernel/drivers/nvme/host/nvme.ko.xz"
BUILTIN = "usr/lib/modules/6.1.0/modules.builtin"
NOISE = random.Random(7).randbytes(300_000)  # noqa: S311 - data that does not pack
MAIN = write_archive([Member(BUILTIN, b"kernel/drivers/block/loop.ko\n"), Member(DRIVER, NOISE)])
MICROCODE = write_archive([Member("kernel/x86/microcode/GenuineIntel.bin", NOISE[:5001])])


def by_lz4(content: bytes) -> bytes:
    """Return what ``lz4 -l`` makes of it, as mkinitramfs calls it."""
    lz4 = needs_client("lz4")
    return subprocess.run([lz4, "-l", "-c"], input=content, stdout=subprocess.PIPE, check=True).stdout


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "xz": lambda content: lzma.compress(content, check=lzma.CHECK_CRC32),
    "zstd": zstd.compress,
    "bzip2": bz2.compress,
    "lz4": by_lz4,
}
compressed = pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)


def names(initrd: bytes) -> list[str]:
    return [member.name for member in stream_initrd(reader(initrd), "initrd")]


def find(initrd: bytes, name: str) -> bytes:
    return next(item.read(MEBIBYTE) for item in stream_initrd(reader(initrd), "initrd") if item.name == name)


def assert_refused(initrd: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        names(initrd)


@compressed
def test_names_and_contents_after_microcode_in_each_compression(compress: Callable[[bytes], bytes]) -> None:
    initrd = MICROCODE + bytes(512) + compress(MAIN + bytes(300)) + bytes(70_000)
    found = names(initrd)
    assert found[-1] == BUILTIN or DRIVER in found
    assert "kernel/x86/microcode/GenuineIntel.bin" in found
    assert find(initrd, BUILTIN) == b"kernel/drivers/block/loop.ko\n"
    assert find(initrd, DRIVER) == NOISE


@pytest.mark.parametrize("kind", sorted(COMPRESSORS.keys() - {"lz4"}))
def test_archives_after_a_compressed_one_are_read(kind: str) -> None:
    """LZ4's legacy frames have no end: the kernel too reads nothing after them."""
    compress = COMPRESSORS[kind]
    assert names(compress(MAIN) + compress(MICROCODE)) == names(MAIN) + names(MICROCODE)


@given(
    st.lists(
        st.lists(st.tuples(st.text("abc/.", min_size=1), st.binary(max_size=9)), max_size=4), max_size=3
    ),
    st.sampled_from(("plain", "gzip", "xz")),
    st.integers(0, 9),
)
def test_streamed_names_equal_those_of_the_reader_in_memory(
    archives: list[list[tuple[str, bytes]]], kind: str, zeros: int
) -> None:
    initrd = b""
    for files in archives:
        plain = {name.strip("/."): data for name, data in files}
        good = [Member(f"d-{name.replace('/', '-')}", data) for name, data in plain.items()]
        initrd += COMPRESSORS[kind](write_archive({item.name: item for item in good}.values()))
        initrd += bytes(zeros * 4)
    expected = [(item.name, item.mode, item.data) for item in read_archives(initrd)]
    streamed = stream_initrd(reader(initrd), "initrd")
    assert [(item.name, item.mode, item.read(99)) for item in streamed] == expected


@given(st.lists(st.binary(max_size=5)), st.lists(st.integers(0, 7)))
def test_stream_of_chunks_reads_like_the_bytes_joined(chunks: list[bytes], lengths: list[int]) -> None:
    whole, stream, position = b"".join(chunks), ByteStream(iter(chunks)), 0
    for length in lengths:
        assert stream.read(length) == whole[position : position + length]
        position = min(position + length, len(whole))
        assert stream.position == position
    rest = whole[position:].lstrip(b"\0")
    assert stream.skip_zeros() == bool(rest)
    assert stream.skip(len(rest))
    assert not stream.skip(1)


def test_content_above_the_limit_is_refused() -> None:
    with pytest.raises(FormatError, match="has 300000 bytes, more than 1000"):
        [member.read(1000) for member in stream_initrd(reader(MAIN), "initrd") if member.name == DRIVER]


def test_name_with_a_path_is_only_a_name() -> None:
    hostile = MICROCODE.replace(b"kernel/x86/microcode", b"../../../../etc/pass")
    assert "../../../../etc/pass/GenuineIntel.bin" in names(hostile)


def header(length: int, name_length: int) -> bytes:
    fields = (1, 0o100644, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0)
    return b"070701" + b"".join(b"%08x" % field for field in fields)


@pytest.mark.parametrize("command", ["gzip -1", "xz -0 -C crc32", "zstd -1 -q", "bzip2 -1"])
def test_bomb_is_refused_within_bounded_memory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 256 * MEBIBYTE if "zstd" in command else 64 * MEBIBYTE
    monkeypatch.setattr(initrd_stream, "MAX_STREAMED", size)
    bomb = tmp_path / "bomb"
    needs_client(command.split(maxsplit=1)[0])
    script = f"(cat; head -c {size} /dev/zero) | {command} > {bomb}"
    start = header(0xFFFFFFFF, 4) + b"big\0\0\0"
    subprocess.run(["/bin/sh", "-c", script], input=start, check=True)
    initrd = bomb.read_bytes()
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        assert_refused(initrd, f"exceeds {size} decompressed bytes")
        assert tracemalloc.get_traced_memory()[1] < 32 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 * 1024  # KiB


def test_endless_members_are_refused() -> None:
    empty = header(0, 2) + b"a\0"
    assert_refused(gzip.compress(empty * (MAX_MEMBERS + 1)), f"more than {MAX_MEMBERS} files")


def test_endless_archives_are_refused() -> None:
    assert_refused(TRAILER * 65, "more than 64 archives")
    assert_refused(gzip.compress(TRAILER * 65), "more than 64 archives")


@pytest.mark.parametrize(
    ("initrd", "message"),
    [
        (b"garbage", "no supported compression: it begins with 676172"),
        (gzip.compress(b"garbage", mtime=0), "no cpio header"),
        (gzip.compress(MAIN, mtime=0)[:-1000], "ends within"),
        (gzip.compress(MAIN, mtime=0)[:1000] + bytes(300_000), "damaged|ends within|no cpio header"),
        (zstd.compress(MAIN)[:-1], "ends within"),
        (COMPRESSORS["xz"](MAIN)[:-20], "ends within"),
        (COMPRESSORS["xz"](MAIN)[:500] + bytes(200_000), "damaged"),
        (MAIN[:-200_000], "ends within"),
        (header(0, 5000) + b"a" * 5000, "a name of 5000 bytes"),
        (header(0, 0xFFFFFFFF), "a name of 4294967295 bytes"),
        (b"070701" + b"x" * 104, "no cpio header"),
        (MICROCODE + b"\x02\x21\x4c\x18" + struct.pack("<I", 50), "ends within"),
        (MICROCODE + b"\x02\x21\x4c\x18" + struct.pack("<I", 9) + b"\x10a\1\0" + bytes(5), "damaged"),
        (b"\x02\x21\x4c\x18" + struct.pack("<I", 2**31), "no supported compression"),
    ],
)
def test_damaged_initrd_is_refused(initrd: bytes, message: str) -> None:
    assert_refused(initrd, message)


@given(st.binary(max_size=400), st.integers(0, 3000))
def test_overwritten_bytes_are_listed_or_refused(noise: bytes, offset: int) -> None:
    initrd = bytearray(MICROCODE + gzip.compress(MAIN))
    initrd[offset : offset + len(noise)] = noise
    with suppress(FormatError):
        names(bytes(initrd))


@pytest.mark.acceptance
@pytest.mark.parametrize("flags", [["-9"], ["-19", "--long=27"]])
def test_zstd_of_high_levels_is_read(flags: list[str], tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(MAIN)
    run_client("zstd", "-q", *flags, plain, "-o", packed)
    assert DRIVER in names(packed.read_bytes())
