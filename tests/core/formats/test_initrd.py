from __future__ import annotations

import base64
import gzip
import lzma
import random
import zlib
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.initrd import compress_archive, read_members
from image_service.core.formats.newc import Member, write_archive
from tests.core.formats.reading import FIXTURES, fixture

AREA = 262144
ZSTD = b"\x28\xb5\x2f\xfd"
XZ = b"\xfd7zXZ\x00"
CONFIG = b'{"ignition":{"version":"3.3.0"}}\n'
ARCHIVE = write_archive([Member("config.ign", CONFIG)])
TEXT = base64.b64encode(random.Random(3).randbytes(150_000))  # noqa: S311 - text that packs badly
TEXT_ARCHIVE = write_archive([Member("config.ign", TEXT * 2)])  # a repeat out of deflate's reach


def xz(content: bytes) -> bytes:
    return lzma.compress(content, check=lzma.CHECK_CRC32)


def names(initrd: bytes) -> list[str]:
    return list(read_members(initrd))


def encoded(archive: bytes, capacity: int) -> bytes:
    found = compress_archive(archive, capacity)
    assert len(found) <= capacity
    return found


def test_archive_that_fits_is_stored_with_golden_bytes() -> None:
    initrd = encoded(ARCHIVE, AREA)
    assert len(initrd) == len(ARCHIVE) + 23
    assert initrd[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert gzip.decompress(initrd) == ARCHIVE
    assert sha256(initrd).hexdigest() == "b2daee812f5ea934d422ff69bf1f0724b8e8f27f8282eb3417860f278f875a0a"


def test_stored_blocks_are_golden() -> None:
    archive = write_archive([Member("config.ign", bytes(range(256)) * 700)])
    initrd = encoded(archive, AREA)
    assert len(initrd) == len(archive) + 18 + 3 * 5
    assert gzip.decompress(initrd) == archive
    assert sha256(initrd).hexdigest() == "e5f52005e6f7c01372af4b549295f238eb06a367563d5e688271b8b1edd8ce04"


@pytest.mark.parametrize("length", [0, 1, 65534, 65535, 65536, 131070, 131071])
def test_stored_blocks_of_any_length(length: int) -> None:
    data = bytes(length)
    initrd = encoded(data, length + 33)
    assert initrd[10] == (length <= 65535)  # the last block's header: stored and final
    assert gzip.decompress(initrd) == data


def test_archive_too_large_for_stored_blocks_is_huffman_coded() -> None:
    initrd = encoded(ARCHIVE, len(ARCHIVE) + 22)
    assert initrd[:10] == bytes.fromhex("1f8b08000000000004ff")
    assert len(initrd) < len(ARCHIVE)
    assert gzip.decompress(initrd) == ARCHIVE


def test_archive_too_large_for_huffman_codes_is_deflated() -> None:
    initrd = encoded(ARCHIVE, len(encoded(ARCHIVE, len(ARCHIVE))) - 1)
    assert initrd[:10] == bytes.fromhex("1f8b08000000000002ff")
    assert gzip.decompress(initrd) == ARCHIVE


def test_archive_too_large_for_deflate_is_xz_with_crc32() -> None:
    initrd = encoded(TEXT_ARCHIVE, AREA)
    assert len(gzip.compress(TEXT_ARCHIVE, 9)) > AREA
    assert initrd[:8] == b"\xfd7zXZ\0\0\x01"
    assert lzma.decompress(initrd) == TEXT_ARCHIVE


def test_archive_that_fits_in_no_form_has_the_smallest() -> None:
    assert compress_archive(TEXT_ARCHIVE, 1000) == encoded(TEXT_ARCHIVE, AREA)
    tiny = write_archive([])
    deflated = encoded(tiny, 48)
    assert len(deflated) < len(lzma.compress(tiny, check=lzma.CHECK_CRC32))
    assert compress_archive(tiny, 0) == deflated


def test_form_of_exactly_the_capacity_fits() -> None:
    sizes = {len(encoded(TEXT_ARCHIVE, capacity)) for capacity in (2**20, len(TEXT_ARCHIVE), AREA)}
    assert len(sizes) == 3
    assert {len(encoded(TEXT_ARCHIVE, size)) for size in sizes} == sizes
    assert len(compress_archive(TEXT_ARCHIVE, min(sizes) - 1)) == min(sizes)


@pytest.mark.parametrize("capacity", [len(TEXT_ARCHIVE) + 100, len(TEXT_ARCHIVE), AREA])
def test_every_form_is_read_back_from_its_area(capacity: int) -> None:
    area = encoded(TEXT_ARCHIVE, capacity).ljust(capacity, b"\0")
    assert read_members(area) == {"config.ign": Member("config.ign", TEXT * 2)}


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_archive_fits_or_is_smallest_and_is_deterministic(data: bytes, capacity: int) -> None:
    archive = write_archive([Member("a", data)])
    initrd = compress_archive(archive, capacity)
    assert initrd == compress_archive(archive, capacity)
    assert len(initrd) <= capacity or capacity < len(gzip.compress(archive)) + 18
    assert read_members(initrd)["a"].data == data


# Reading.


def test_zeros_read_as_an_initrd_without_members() -> None:
    assert read_members(b"") == {}
    assert read_members(bytes(AREA)) == {}


@pytest.mark.parametrize("gap", [0, 1, 4, 511])
def test_archives_with_zeros_between_are_read(gap: int) -> None:
    archives = [write_archive([Member(name, name.encode())]) for name in "abc"]
    forms = [gzip.compress(archives[0]), xz(archives[1])]
    initrd = bytes(gap) + bytes(gap).join(forms) + bytes(gap)
    assert names(initrd) == ["a", "b"]
    aligned = bytes(-len(initrd) % 4)
    assert names(initrd + aligned + archives[2] + bytes(gap)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("initrd", "named"),
    [
        (lzma.compress(ARCHIVE, check=lzma.CHECK_CRC64), "CRC64, which the kernel does not read"),
        (ARCHIVE + lzma.compress(ARCHIVE, check=lzma.CHECK_SHA256), "SHA-256, which the kernel does not"),
        (
            lzma.compress(
                ARCHIVE,
                check=lzma.CHECK_CRC32,
                filters=[{"id": lzma.FILTER_DELTA, "dist": 1}, {"id": lzma.FILTER_LZMA2}],
            ),
            "delta filter",
        ),
        (gzip.compress(ARCHIVE)[:3] + b"\x10" + gzip.compress(ARCHIVE)[4:10] + b"note\0", "header fields"),
        (b"\x04\x22\x4d\x18" + ARCHIVE, "LZ4 frame"),
        (b"\x89LZO" + ARCHIVE, "LZO"),
        (b"\0" + ARCHIVE, "not at a multiple of 4"),
    ],
    ids=["crc64", "sha256", "delta", "comment", "lz4", "lzo", "unaligned"],
)
def test_archives_that_the_kernel_skips_are_refused(initrd: bytes, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        read_members(initrd)


def test_last_member_of_a_name_wins() -> None:
    first, last = (gzip.compress(write_archive([Member("a", data)])) for data in (b"1", b"2"))
    assert read_members(first + last)["a"].data == b"2"


def test_only_regular_files_are_returned_with_their_modes() -> None:
    archive = write_archive(
        [Member("d/x", b"1", 0o100755), Member("link", b"d/x", 0o120777), Member("d", b"", 0o040700)]
    )
    assert read_members(archive) == {"d/x": Member("d/x", b"1", 0o100755)}


def test_zeros_after_a_compressed_archive_are_accepted() -> None:
    assert names(gzip.compress(ARCHIVE + bytes(1000))) == ["config.ign"]


def test_data_after_a_compressed_archive_is_refused() -> None:
    with pytest.raises(FormatError, match="data after its end"):
        read_members(gzip.compress(ARCHIVE + ARCHIVE))


@pytest.mark.parametrize("form", [gzip.compress, xz])
def test_truncated_archive_is_refused(form: object) -> None:
    assert callable(form)
    whole = form(ARCHIVE)
    for length in range(1, len(whole)):
        with pytest.raises(FormatError):
            read_members(whole[:length])


@pytest.mark.parametrize(
    ("initrd", "named"),
    [
        (b"junk", "no cpio header at offset 0"),
        (bytes(4) + b"junk", "no cpio header at offset 4"),
        (ARCHIVE + b"\x1f\x8b\x09\0junk", f"archive at offset {len(ARCHIVE)} of the initrd is damaged"),
        (b"\xfd7zXZ\0\0\1junkjunkjunkjunk", "archive at offset 0 of the initrd is damaged"),
        (ZSTD + b"junk", "zstd"),
        (gzip.compress(b"", mtime=0), "no cpio header"),
    ],
)
def test_unknown_bytes_are_refused_with_their_offset(initrd: bytes, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        read_members(initrd)


@pytest.mark.parametrize("form", ["gzip", "xz"])
def test_decompression_bomb_is_refused(form: str) -> None:
    zeros = bytes(2**26 + 1)
    bomb = zlib.compress(zeros, wbits=31) if form == "gzip" else xz(zeros)
    assert len(bomb) < 100_000
    with pytest.raises(FormatError, match=f"exceeds {2**26} decompressed bytes"):
        read_members(bomb)


def test_limit_applies_to_all_archives_together() -> None:
    part = gzip.compress(ARCHIVE)
    assert names(part * 3) == ["config.ign"]
    read_members(part * 3, limit=3 * len(ARCHIVE))
    with pytest.raises(FormatError, match="exceeds"):
        read_members(part * 3, limit=3 * len(ARCHIVE) - 1)


def test_xz_that_needs_too_much_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    with pytest.raises(FormatError, match="damaged"):
        read_members(lzma.compress(ARCHIVE, check=lzma.CHECK_CRC32, filters=filters))


def test_real_initrds_are_read() -> None:
    assert {name: member.data for name, member in read_members(fixture("initrd/redundant.img")).items()} == {
        "data/file": b"third\n"
    }
    assert names(fixture("initrd/padded-names.img")) == ["dir/world", "dir/hello"]
    mixed = fixture("initrd/compressed.img")
    with pytest.raises(FormatError, match="xz with CRC64"):
        read_members(mixed)
    assert {name: member.data for name, member in read_members(mixed[: mixed.index(XZ)]).items()} == {
        f"{form}/{name}": f"{name.upper()}\n".encode()
        for form in ("uncompressed-1", "gzip")
        for name in ("world", "hello")
    }


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"{FIXTURES} is not there")
def test_names_that_are_not_utf8_are_kept() -> None:
    for name, found in (("traversal-absolute", "/etc/adjtime"), ("traversal-relative", "../f")):
        image = (FIXTURES / f"initrd/{name}.img").read_bytes()
        assert names(lzma.decompress(image)) == [found]  # with CRC64, which the kernel does not read


@given(st.binary(max_size=400), st.sampled_from([b"", b"\x1f\x8b\x08\0", b"\xfd7zXZ\0\0\x01", b"070701"]))
def test_random_bytes_are_read_or_refused(data: bytes, magic: bytes) -> None:
    try:
        read_members(magic + data)
    except FormatError as refused:
        assert refused.detail.isascii()  # noqa: PT017 - either outcome is fine
