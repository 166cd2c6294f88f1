from __future__ import annotations

import json
import lzma
import tracemalloc
import zlib
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import LIVEISO
from image_service.core.families.coreos.kargs_areas import rewrite_kargs_json
from image_service.core.families.coreos.minimal_iso import (
    CopiedFile,
    MinimalIso,
    check_minimal_iso,
    read_minimal_iso,
)
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import Span
from tests.core.families.coreos.miniso_builder import (
    MAGIC,
    MINISO,
    ROOTFS,
    live_iso_with_minimal,
    minimal_files,
    number,
    pack_minimal_iso,
    pack_recipe,
)
from tests.core.formats.filesystems.iso_builder import SECTOR, build_iso, live_files
from tests.core.formats.reading import FIXTURES, MeteredReader, fixture, read_layout, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from image_service.core.formats.reading import ReadAt

KARGS = "coreos/kargs.json"
MIB = 2**20
LITERAL_LIMIT = 16 * MIB
MEMORY_LIMIT = 128 * MIB  # a decoder of preset 9, and twice its output
GOLDEN: Mapping[str, Any] = (
    json.loads((FIXTURES / "golden.json").read_text())["iso"] if FIXTURES.exists() else {}
)
RAW_DIGEST = "miniso raw digest (before karg edit)"
EXTRACTED = {
    "": "extract minimal-iso",
    " coreos.live.rootfs_url=https://example.com/rootfs.img": (
        "extract minimal-iso --rootfs-url https://example.com/rootfs.img"
    ),
}


def no_check() -> None:
    """Never cancel."""


def find(image: bytes, path: str) -> Span:
    return read_iso9660(reader(image), len(image)).find_file(path)


def recipe_in(image: bytes) -> MinimalIso:
    """Return the recipe in a full ISO."""
    return read_minimal_iso(reader(image), find(image, MINISO), len(image))


def read_recipe(packed: bytes, image_size: int = 2**40, read: ReadAt | None = None) -> MinimalIso:
    """Read a miniso.dat that fills its file."""
    return read_minimal_iso(read or reader(packed), Span(MINISO, 0, len(packed)), image_size)


def refusal(packed: bytes, image_size: int = 2**40) -> str:
    with pytest.raises(FormatError) as caught:
        read_recipe(packed, image_size)
    return caught.value.detail


def render(minimal: MinimalIso, full: bytes) -> bytes:
    """Return the minimal ISO, piece by piece."""
    made = b""
    for piece in minimal.pieces:
        if isinstance(piece, CopiedFile):
            assert piece.minimal == len(made)
            made += full[piece.full : piece.full + piece.length]
        else:
            made += bytes(piece)  # of a number: as many zeros
    assert len(made) == minimal.size
    return made


def extracted(image: bytes, appended: str) -> bytes:
    """Return what coreos-installer makes of a full ISO: the rendered recipe with edited arguments."""
    kargs, minimal = read_layout(image).kernel_arguments, recipe_in(image)
    assert kargs is not None
    made = bytearray(render(minimal, image))
    default = " ".join(word for word in kargs.default.split() if not word.startswith(LIVEISO))
    for area in kargs.areas:
        start = minimal.translate(area.offset, kargs.size)
        arguments = (default + appended).encode() + area.end
        made[start : start + kargs.size] = arguments.ljust(kargs.size, area.pad)
    file = find(image, KARGS)
    start, stop = minimal.translate(file.offset, file.length), file.offset + file.length
    made[start : start + file.length] = rewrite_kargs_json(image[file.offset : stop], default)
    return bytes(made)


@contextmanager
def memory_limit(limit: int = MEMORY_LIMIT) -> Iterator[None]:
    """Fail if the peak of allocated memory exceeds so many bytes."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


# Real images


@pytest.mark.parametrize("name", [name for name, golden in GOLDEN.items() if RAW_DIGEST in golden])
def test_real_recipes_match_their_digest(name: str) -> None:
    image = fixture(name)
    minimal = recipe_in(image)
    check_minimal_iso(minimal, reader(image), no_check)
    assert minimal.sha256 == sha256(render(minimal, image)).hexdigest() == GOLDEN[name][RAW_DIGEST]


@pytest.mark.parametrize(
    ("name", "appended"),
    [
        (name, appended)
        for name, golden in GOLDEN.items()
        for appended, key in EXTRACTED.items()
        if key in golden
    ],
)
def test_real_minimal_isos_equal_those_of_coreos_installer(name: str, appended: str) -> None:
    made, golden = extracted(fixture(name), appended), GOLDEN[name][EXTRACTED[appended]]
    assert (len(made), sha256(made).hexdigest()) == (golden["size"], golden["sha256"])


def test_built_live_iso_has_the_minimal_iso_of_its_files() -> None:
    rootfs = b"rootfs data " * 10000
    image = live_iso_with_minimal(rootfs)
    minimal = recipe_in(image)
    check_minimal_iso(minimal, reader(image), no_check)
    made = render(minimal, image)
    assert made == build_iso(minimal_files(live_files()))
    assert rootfs in image
    assert b"rootfs" not in made


def test_rootfs_has_no_offset_in_the_minimal_iso() -> None:
    image = live_iso_with_minimal()
    minimal, rootfs = recipe_in(image), find(image, ROOTFS)
    with pytest.raises(FormatError, match=f"{rootfs.length} bytes at offset {rootfs.offset}"):
        minimal.translate(rootfs.offset, rootfs.length)


# Built recipes

FULL_SECTORS = 24
FULL = b"".join(sha256(b"%d" % index).digest() for index in range(FULL_SECTORS * SECTOR // 32))
RUNS = st.lists(st.tuples(st.sampled_from([b"\0", b"\0", b"x"]), st.integers(1, 9000)), max_size=6)


@st.composite
def minimal_isos(draw: st.DrawFn) -> tuple[bytes, list[CopiedFile]]:
    """Minimal ISOs of files of `FULL` between runs of bytes, and those files."""
    made, files = b"", []
    for _ in range(draw(st.integers(1, 5))):
        made += b"".join(byte * count for byte, count in draw(RUNS))
        made += bytes(-len(made) % SECTOR)
        sector = draw(st.integers(0, FULL_SECTORS - 1))
        length = draw(st.integers(1, (FULL_SECTORS - sector) * SECTOR))
        files.append(CopiedFile(len(made), sector * SECTOR, length))
        made += FULL[sector * SECTOR :][:length]
        made += b"".join(byte * count for byte, count in draw(RUNS))
    return made, files


@given(minimal_isos())
def test_recipes_are_read_back(made: tuple[bytes, list[CopiedFile]]) -> None:
    expected, files = made
    minimal = read_recipe(pack_minimal_iso(FULL, expected, files) + b"what is left of the room")
    assert render(minimal, FULL) == expected
    assert [piece for piece in minimal.pieces if isinstance(piece, CopiedFile)] == files
    check_minimal_iso(minimal, reader(FULL), no_check)


@given(minimal_isos())
@example((bytes(4096) + FULL[:1], [CopiedFile(4096, 0, 1)]))
@example((FULL[:SECTOR] + bytes(4095), [CopiedFile(0, 0, SECTOR)]))
@example((FULL[:SECTOR] + b"x" + bytes(4096), [CopiedFile(0, 0, SECTOR)]))
def test_only_long_runs_of_zeros_are_numbers(made: tuple[bytes, list[CopiedFile]]) -> None:
    expected, files = made
    pieces = read_recipe(pack_minimal_iso(FULL, expected, files)).pieces
    assert all(piece >= 4096 for piece in pieces if isinstance(piece, int))
    assert all(piece and bytes(4096) not in piece for piece in pieces if isinstance(piece, bytes))
    for one, other in pairwise(pieces):
        assert CopiedFile in {type(one), type(other)} or type(one) is not type(other)


@given(minimal_isos(), st.data())
def test_bytes_inside_one_file_are_translated(
    made: tuple[bytes, list[CopiedFile]], data: st.DataObject
) -> None:
    expected, files = made
    minimal = read_recipe(pack_minimal_iso(FULL, expected, files))
    edges = [edge for file in files for edge in (file.full, file.full + file.length)]
    places = st.sampled_from(edges).flatmap(lambda edge: st.integers(max(edge - 2, 0), edge + 2))
    offset, stop = sorted((data.draw(places), data.draw(places)))
    length = stop - offset + 1
    whole = [file for file in files if set(range(offset, offset + length)) <= set(span(file))]
    if whole:
        start = minimal.translate(offset, length)
        assert expected[start : start + length] == FULL[offset : offset + length]
        assert start in {offset - file.full + file.minimal for file in whole}
    else:
        with pytest.raises(FormatError):
            minimal.translate(offset, length)


def span(file: CopiedFile) -> range:
    return range(file.full, file.full + file.length)


# Checks


def small() -> tuple[bytes, list[CopiedFile]]:
    """Return a minimal ISO of two literal MiB, a file of three, and more than two of zeros; and the file."""
    other_in_each_chunk = bytes(range(251)) * (3 * MIB // 251 + 1)
    made = other_in_each_chunk[: 2 * MIB] + other_in_each_chunk[: 3 * MIB] + bytes(2 * MIB + 1)
    return made, [CopiedFile(2 * MIB, 0, 3 * MIB)]


def test_recipe_is_checked_in_mebibytes_each_after_a_cancellation_check() -> None:
    made, files = small()
    full, events = made[2 * MIB :][: 3 * MIB], list[object]()

    def read_at(offset: int, length: int) -> bytes:
        events.append((offset, length))
        return full[offset : offset + length]

    check_minimal_iso(
        read_recipe(pack_minimal_iso(full, made, files)), read_at, lambda: events.append("check")
    )
    reads = [event for event in events if event != "check"]
    assert reads == [(0, MIB), (MIB, MIB), (2 * MIB, MIB)]
    assert all(events[events.index(read) - 1] == "check" for read in reads)
    assert events.count("check") == 2 + 3 + 3  # literal, file, zeros


def test_check_stops_when_canceled() -> None:
    made, files = small()
    minimal = read_recipe(pack_minimal_iso(made[2 * MIB :], made, files))
    with pytest.raises(KeyError, match="stop"):
        check_minimal_iso(minimal, reader(made[2 * MIB :]), interrupt_after(3))


def interrupt_after(count: int) -> Callable[[], None]:
    left = iter(range(count))

    def check() -> None:
        if next(left, None) is None:
            raise KeyError("stop")

    return check


@pytest.mark.parametrize("offset", [0, 3 * MIB - 1])
def test_changed_full_iso_is_refused(offset: int) -> None:
    made, files = small()
    minimal = read_recipe(pack_minimal_iso(made[2 * MIB :], made, files))
    other = bytearray(made[2 * MIB :])
    other[offset] ^= 1
    with pytest.raises(FormatError, match=minimal.sha256):
        check_minimal_iso(minimal, reader(bytes(other)), no_check)


def test_wrong_digest_is_refused() -> None:
    made, files = small()
    packed = pack_minimal_iso(made[2 * MIB :], made, files)
    digest = sha256(made).digest()
    minimal = read_recipe(packed.replace(digest, digest[::-1]))
    with pytest.raises(FormatError, match=digest.hex()):
        check_minimal_iso(minimal, reader(made[2 * MIB :]), no_check)


def test_truncated_full_iso_is_refused() -> None:
    made, files = small()
    minimal = read_recipe(pack_minimal_iso(made[2 * MIB :], made, files))
    with pytest.raises(FormatError, match=f"at offset {2 * MIB}"):
        check_minimal_iso(minimal, reader(made[2 * MIB :][: 3 * MIB - 1]), no_check)


def test_check_needs_memory_for_a_few_chunks() -> None:
    zeros = MinimalIso((256 * MIB,), 256 * MIB, sha256(bytes(256 * MIB)).hexdigest())
    with memory_limit(4 * MIB):
        check_minimal_iso(zeros, reader(b""), no_check)


# Refusals

BODY = lzma.compress(bytes(3 * SECTOR))
ONE = [(1, 0, 1)]


@pytest.mark.parametrize(
    ("table", "image_size", "named"),
    [
        ([], SECTOR, "not 0"),
        ([(1, 1, 0)], 2 * SECTOR, "file 0 is empty"),
        ([(1, 0, 1), (2, 0, 0)], SECTOR, "file 1 is empty"),
        ([(1, 0, SECTOR + 1), (2, 0, 1)], 3 * SECTOR, "file 1"),
        ([(2, 0, 1), (1, 0, 1)], SECTOR, "file 1"),
        ([(1, 0, 1), (1, 0, 1)], SECTOR, "file 1"),
        ([(1, 1, 1)], SECTOR, f"extends beyond the ISO of {SECTOR} bytes"),
        ([(1, 0, SECTOR + 1)], SECTOR, f"extends beyond the ISO of {SECTOR} bytes"),
        ([(1, 0, 2**63)], SECTOR, f"length={2**63}"),
        ([(1, 2**63, 1)], SECTOR, f"full={2**63 * SECTOR}"),
        ([(1, 2**64 - 1, 2**64 - 1)], SECTOR, f"extends beyond the ISO of {SECTOR} bytes"),
        ([(2**63, 0, 1)], SECTOR, f"leaves {2**63 * SECTOR} bytes between its files"),
        ([(LITERAL_LIMIT // SECTOR, 0, 1), (LITERAL_LIMIT // SECTOR + 1, 0, 1)], SECTOR, "between its files"),
        ([(1, 0, SECTOR), (2, 0, 1)], SECTOR, "file 1 extends beyond"),  # terabytes out of one gibibyte
        ([(4, 0, 1)], SECTOR, f"has {3 * SECTOR} decompressed bytes; {4 * SECTOR} are expected"),
        ([(1, 0, 1), (4, 0, 1)], SECTOR, "are expected"),
    ],
)
def test_invalid_file_table_is_refused(
    table: Sequence[tuple[int, int, int]], image_size: int, named: str
) -> None:
    assert named in refusal(pack_recipe(table, BODY), image_size)


@pytest.mark.parametrize("count", [0, 1025, 2**60, 2**64 - 1])
def test_impossible_number_of_files_is_refused_first(count: int) -> None:
    packed = pack_recipe(ONE, BODY, count=count)
    with memory_limit(MIB):
        assert f"not {count}" in refusal(packed)


@pytest.mark.parametrize("length", [len(BODY) + 1, 2**32, 2**64 - 1])
def test_truncated_xz_stream_is_refused(length: int) -> None:
    assert f"{length} bytes are expected" in refusal(pack_recipe(ONE, BODY, body_length=length))


def test_recipe_that_was_never_packed_is_refused() -> None:
    assert "did not pack" in refusal(bytes(16384))


@pytest.mark.parametrize("version", [0, 2, 2**64 - 1])
def test_other_versions_are_refused(version: int) -> None:
    packed = pack_recipe(ONE, BODY).replace(MAGIC + number(1), MAGIC + number(version))
    assert f"version {version}" in refusal(packed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY[:-1],
        BODY + b"\0\0\0\0",
        BODY + BODY,
        BODY[:40] + bytes([BODY[40] ^ 1]) + BODY[41:],
        lzma.compress(bytes(3 * SECTOR), format=lzma.FORMAT_ALONE),
        zlib.compress(bytes(3 * SECTOR)),
    ],
)
def test_anything_but_one_whole_xz_stream_is_refused(body: bytes) -> None:
    assert "the xz stream" in refusal(pack_recipe(ONE, body))


def small_dictionary(data: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096}]
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)


def test_decompression_bomb_is_refused() -> None:
    packed = pack_recipe(ONE, small_dictionary(bytes(8 * LITERAL_LIMIT)))
    with memory_limit(2 * LITERAL_LIMIT + MIB):
        assert f"exceeds {LITERAL_LIMIT} decompressed bytes" in refusal(packed)


def test_literal_of_exactly_the_limit_is_accepted() -> None:
    minimal = read_recipe(pack_recipe(ONE, small_dictionary(bytes(LITERAL_LIMIT))))
    assert minimal.size == LITERAL_LIMIT + 1
    assert minimal.pieces == (b"\0" * SECTOR, CopiedFile(SECTOR, 0, 1), LITERAL_LIMIT - SECTOR)


def test_preset_of_coreos_installer_is_read() -> None:
    packed = pack_recipe(ONE, lzma.compress(bytes(3 * SECTOR), preset=9))
    with memory_limit():
        assert read_recipe(packed).size == 3 * SECTOR + 1


def test_oversized_dictionary_is_refused() -> None:
    """The byte with its size, 4 GiB - 1, is in the block's header, which has its own CRC."""
    huge = bytearray(BODY)
    assert huge[14:16] == b"\x21\x01"  # LZMA2, whose one property is the size
    header = huge[12:20]
    header[4] = 40
    huge[12:24] = header + zlib.crc32(header).to_bytes(4, "little")
    with memory_limit(MIB):
        assert "Memory usage limit" in refusal(pack_recipe(ONE, bytes(huge)))


def test_at_most_a_mebibyte_is_read() -> None:
    packed = pack_recipe(ONE, BODY)
    file = Span(MINISO, 0, 2**62)
    image = packed + bytes(MIB)
    assert read_minimal_iso(MeteredReader(image, MIB), file, SECTOR).size == 3 * SECTOR + 1


def test_recipe_truncated_by_the_image_is_refused() -> None:
    with pytest.raises(FormatError, match="offset 10"):
        read_minimal_iso(reader(bytes(100)), Span(MINISO, 10, 200), 100)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)
    refusal(MAGIC + number(1) + data)


FULL_ISO = live_iso_with_minimal(b"rootfs data\n" * 1000)
FILE = find(FULL_ISO, MINISO)
PACKED = FULL_ISO[FILE.offset : FILE.offset + FILE.length].rstrip(b"\0")
TABLE_END = PACKED.index(b"\xfd7zXZ")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid recipe with bytes replaced, inserted or removed, mostly before its xz stream."""
    broken = PACKED
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.one_of(st.integers(0, TABLE_END), st.integers(0, len(PACKED))))
        gone = draw(st.integers(0, 12))
        put = draw(st.one_of(st.binary(max_size=8), st.integers(0, 2**64 - 1).map(number)))
        broken = broken[:start] + put + broken[start + gone :]
    return broken


@given(damaged())
def test_damaged_recipe_is_refused_or_within_limits(packed: bytes) -> None:
    with memory_limit():
        try:
            minimal = read_recipe(packed, len(FULL_ISO))
            files = [piece for piece in minimal.pieces if isinstance(piece, CopiedFile)]
            assert all(0 <= file.full < file.full + file.length <= len(FULL_ISO) for file in files)
            assert minimal.size <= len(FULL_ISO) + LITERAL_LIMIT
            assert len(render(minimal, FULL_ISO)) == minimal.size
            check_minimal_iso(minimal, reader(FULL_ISO), no_check)
        except FormatError as refused:
            refused.detail.encode()


@given(st.integers(0, len(PACKED) - 1))
def test_truncated_recipe_is_refused(length: int) -> None:
    refusal(PACKED[:length])
