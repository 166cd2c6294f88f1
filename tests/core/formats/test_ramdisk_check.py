"""Which ramdisks no kernel unpacks, and about which there is a doubt."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import sys
from itertools import count
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats import initrd_stream
from image_service.core.formats.initrd import compress_archive
from image_service.core.formats.initrd_stream import CHECK_SECONDS, check_ramdisk
from image_service.core.formats.newc import Member, write_archive

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHIVE = write_archive([Member("etc/a", b"a" * 5000), Member("etc/b", bytes(range(256)) * 9)])
OTHER = write_archive([Member("etc/c", b"c")])
CRC = ARCHIVE.replace(b"070701", b"070702")
TRAILER = write_archive([])
LZMA2 = {"id": lzma.FILTER_LZMA2, "preset": 1}
LZO = b"\x89LZO\0\r\n\x1a\n"
LZ4_EMPTY_BLOCKS = b"\x02\x21\x4c\x18"


def xz(content: bytes, check: int = lzma.CHECK_CRC32, *filters: Mapping[str, object]) -> bytes:
    return lzma.compress(content, check=check, filters=[*filters, LZMA2])


def gzip_with(flags: int, field: bytes) -> bytes:
    """With an optional field in its header (RFC 1952 section 2.3.1)."""
    whole = gzip.compress(ARCHIVE, mtime=0)
    return whole[:3] + bytes([flags]) + whole[4:10] + field + whole[10:]


def lz4_stored(content: bytes) -> bytes:
    """A legacy frame with one block of literals alone."""
    length, more = len(content) - 15, b""
    while length >= 255:
        length, more = length - 255, more + b"\xff"
    block = b"\xf0" + more + bytes([length]) + content
    return LZ4_EMPTY_BLOCKS + struct.pack("<I", len(block)) + block


def zstd_with_window(log: int) -> bytes:
    parameter = zstd.CompressionParameter
    packer = zstd.ZstdCompressor(options={parameter.window_log: log, parameter.content_size_flag: 0})
    return packer.compress(ARCHIVE) + packer.flush()


def check(ramdisk: bytes, seconds_a_look: float = 0.0) -> tuple[str, ...]:
    clock = count(0, 1)
    return check_ramdisk(ramdisk, "it", lambda: next(clock) * seconds_a_look)


@pytest.mark.parametrize(
    "ramdisk",
    [
        ARCHIVE,
        bytes(512) + ARCHIVE + bytes(512) + OTHER,
        compress_archive(ARCHIVE, 0),
        gzip.compress(ARCHIVE),
        b"\0" + gzip.compress(ARCHIVE + OTHER),
        gzip_with(0x08, b"a.cpio\0"),
        gzip.compress(ARCHIVE) + xz(OTHER),
        xz(ARCHIVE),
        xz(ARCHIVE, lzma.CHECK_NONE),
        xz(ARCHIVE) + xz(OTHER),
        gzip.compress(TRAILER),
    ],
)
def test_ramdisk_that_every_kernel_unpacks_has_no_doubt(ramdisk: bytes) -> None:
    assert check(ramdisk) == ()


@pytest.mark.parametrize(
    ("ramdisk", "reason"),
    [
        (xz(ARCHIVE, lzma.CHECK_CRC64), r"it is xz with CRC64, .*; use xz --check=crc32"),
        (xz(ARCHIVE, lzma.CHECK_SHA256), r"it is xz with SHA-256, .*; use xz --check=crc32"),
        (xz(ARCHIVE)[:7] + b"\x02" + xz(ARCHIVE)[8:], r"xz with check 2, .*; use xz --check=crc32"),
        (
            xz(ARCHIVE, lzma.CHECK_CRC32, {"id": lzma.FILTER_DELTA, "dist": 1}),
            r"delta filter, .*; use xz --check=crc32",
        ),
        (
            OTHER + xz(ARCHIVE, lzma.CHECK_CRC64),
            rf"archive at offset {len(OTHER)} of it is xz with CRC64",
        ),
        (xz(OTHER) + xz(ARCHIVE, lzma.CHECK_SHA256), "of it is xz with SHA-256"),
        (gzip_with(0x04, b"\x06\0BC\x02\0\0\0"), "header fields .flags 0x04."),
        (gzip_with(0x10, b"comment\0"), "header fields .flags 0x10."),
        (b"\x04\x22\x4d\x18" + bytes(40), "use lz4 -l"),
        (ARCHIVE[: -len(TRAILER)], "no cpio header"),
        (ARCHIVE[: -len(TRAILER) - 100], "ends within"),
        (ARCHIVE[:100], "no cpio header"),
        (gzip.compress(ARCHIVE[: -len(TRAILER)]), "no cpio header"),
        (gzip.compress(ARCHIVE)[:-1], "ends within"),
        (gzip.compress(ARCHIVE)[:-8], "ends within"),
        (gzip.compress(ARCHIVE)[:40], "ends within"),
        (xz(ARCHIVE)[:-20], "ends within"),
        (xz(ARCHIVE)[:30], "ends within"),
        (zstd.compress(ARCHIVE)[:-1], "ends within"),
        (bz2.compress(ARCHIVE)[:-1], "ends within"),
        (lzma.compress(ARCHIVE, lzma.FORMAT_ALONE)[:60], "ends within"),
        (CRC[: -len(TRAILER)], "no cpio header"),
        (gzip.compress(ARCHIVE[:2000]) + gzip.compress(ARCHIVE[2000:]), "ends within"),
        (gzip.compress(ARCHIVE) + b"\0\0"[: 1 + len(gzip.compress(ARCHIVE)) % 2] + ARCHIVE, "multiple of 4"),
        (gzip.compress(OTHER) + b"junk", "no supported compression"),
        (gzip.compress(b"junk"), "no cpio header"),
        (b"070707" + bytes(104), "not an archive of gzip, xz, zstd or cpio"),
        (b"", "not an archive"),
        (bytes(512), "not an archive"),
        (b'{"code":404}', "not an archive"),
    ],
)
def test_ramdisk_that_no_kernel_unpacks_is_refused(ramdisk: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        check(ramdisk)


@pytest.mark.parametrize(
    ("ramdisk", "reasons"),
    [
        (zstd.compress(ARCHIVE), ["it is zstd, which kernels before 5.9"]),
        (zstd_with_window(28), ["it is zstd", "more than 134217728 bytes of memory"]),
        (zstd_with_window(27), ["it is zstd"]),
        (bz2.compress(ARCHIVE), ["it is bzip2, which kernels without CONFIG_RD_BZIP2 skip"]),
        (lz4_stored(ARCHIVE), ["it is LZ4, which kernels without CONFIG_RD_LZ4 skip"]),
        (
            lzma.compress(ARCHIVE, lzma.FORMAT_ALONE),
            ["it is LZMA, which kernels without CONFIG_RD_LZMA"],
        ),
        (LZO + bytes(40), ["it is LZO, which kernels without CONFIG_RD_LZO skip; the rest was not checked"]),
        (CRC, ["it is newc with checksums, which kernels before 5.19 skip"]),
        (xz(ARCHIVE, lzma.CHECK_CRC32, {"id": lzma.FILTER_X86}), ["CONFIG_XZ_DEC_"]),
        (xz(ARCHIVE, lzma.CHECK_CRC32, {"id": lzma.FILTER_ARM}), ["CONFIG_XZ_DEC_"]),
        (gzip.compress(OTHER) + bz2.compress(ARCHIVE), ["the archive at offset"]),
        (
            lzma.compress(
                ARCHIVE, check=lzma.CHECK_CRC32, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}]
            ),
            ["more than 134217728 bytes of memory"],
        ),
    ],
)
def test_ramdisk_that_some_kernels_skip_has_doubts(ramdisk: bytes, reasons: list[str]) -> None:
    doubts = check(ramdisk)
    assert len(doubts) == len(reasons)
    for doubt, reason in zip(doubts, reasons, strict=True):
        assert reason in doubt


@pytest.mark.parametrize("compress", [gzip.compress, xz, zstd.compress, bz2.compress])
def test_unpacking_is_bounded_in_bytes(compress: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the limit is a doubt, not a fault: here it is damage."""
    assert callable(compress)
    monkeypatch.setattr(initrd_stream, "MAX_CHECKED", 1024 * 1024)
    content = write_archive([Member("a", bytes(3 * 1024 * 1024))])
    doubts = check(compress(content[: -len(TRAILER)]))
    assert "exceeds 1048576 decompressed bytes; the rest was not checked" in doubts[-1]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, xz])
def test_unpacking_is_bounded_in_time(compress: object) -> None:
    assert callable(compress)
    (doubt,) = check(compress(ARCHIVE), CHECK_SECONDS * 2)
    assert doubt == f"it takes more than {CHECK_SECONDS:g} s to unpack; the rest was not checked"


def test_endless_files_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initrd_stream, "MAX_MEMBERS", 2)
    assert "more than 2 files" in check(ARCHIVE)[0]
