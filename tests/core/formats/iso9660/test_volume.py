from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.iso9660.volume import Iso9660, read_iso9660
from image_service.core.formats.reading import Span
from tests.core.formats.filesystems.iso_builder import (
    CREATED,
    DIRECTORY,
    MULTI_EXTENT,
    SECTOR,
    build_iso,
    descriptors,
    directory,
    record,
    write_sparse_iso,
)
from tests.core.formats.reading import MeteredReader, fixture, reader

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
ROOT = 18 * SECTOR  # where the builder puts the root directory


def read(image: bytes) -> Iso9660:
    return read_iso9660(reader(image), len(image))


def image_of(*records: bytes, sectors: int = 32) -> bytes:
    """Return an image whose root directory, at sector 18, has ``records``, followed by zeros."""
    content = directory(records)
    root = record(b"\0", 18, len(content), DIRECTORY)
    return (descriptors(root, sectors) + content).ljust(sectors * SECTOR, b"\0")


def patched(image: bytes, offset: int, data: bytes) -> bytes:
    return image[:offset] + data + image[offset + len(data) :]


def test_file_is_found_by_its_path_in_any_case() -> None:
    image = build_iso({"a.txt": b"one", "dir/sub/b.bin": b"second"})
    iso = read(image)
    for path in ("dir/sub/b.bin", "DIR/SUB/B.BIN", "/Dir//Sub/b.Bin"):
        found = iso.find_file(path)
        assert image[found.offset : found.offset + found.length] == b"second"
        assert found.path == path


def test_volume_identifier_date_and_size_are_read() -> None:
    image = build_iso({"a": b""}, volume_id="scos-9")
    assert read(image).volume_id == "scos-9"
    assert read(image).size == len(image)
    assert read(image).created == CREATED


def test_names_are_found_in_full_and_truncated_to_level_1() -> None:
    iso = read(image_of(record(b"IGNINFO.JSO;1", 20, 1), record(b"INITRD~1.JSON;1", 21, 2)))
    assert iso.find_file("igninfo.json").length == 1
    assert iso.find_file("igninfo.jso").length == 1
    assert iso.find_file("initrd~1.json").length == 2


def test_full_name_wins_over_truncated_one() -> None:
    iso = read(image_of(record(b"KARGS.JSO;1", 20, 1), record(b"KARGS.JSON;1", 21, 2)))
    assert iso.find_file("kargs.json").length == 2


def test_names_are_truncated_like_level_1() -> None:
    iso = read(build_iso({"coreos-dir/ignition-config.json": b"x"}))
    assert iso.find_file("coreos-dir/ignition-config.json").length == 1
    assert iso.find_file("COREOS-D/IGNITION.JSO").length == 1
    for path in ("coreos-/ignition.jso", "coreos-d/ignitio.jso", "coreos-d/ignition.js"):
        with pytest.raises(FileNotInImage):
            iso.find_file(path)


def test_lower_case_name_is_found() -> None:
    assert read(image_of(record(b"Kernel.img;1", 20, 1))).find_file("KERNEL.IMG").length == 1


def test_paths_have_up_to_eight_names() -> None:
    iso = read(build_iso({"a/b/c/d/e/f/g/h": b"x", "a/b/c/d/e/f/g/i/j": b""}))
    assert iso.find_file("a/b/c/d/e/f/g/h").length == 1
    with pytest.raises(FileNotInImage, match="8 levels"):
        iso.find_file("a/b/c/d/e/f/g/i/j")


def test_name_without_extension_may_keep_its_dot() -> None:
    iso = read(image_of(record(b"VMLINUZ.;1", 20, 7), record(b"BZIMAGE", 21, 8)))
    assert iso.find_file("vmlinuz").length == 7
    assert iso.find_file("bzimage").length == 8


@pytest.mark.parametrize("path", ["b", "dir/b", "a/b", "nodir/a", "..", "ä", "\ud800", "d/" * 9 + "a"])
def test_missing_file_is_file_not_in_image(path: str) -> None:
    with pytest.raises(FileNotInImage, match="no file"):
        read(build_iso({"a": b"", "dir/a": b""})).find_file(path)


@pytest.mark.parametrize("path", ["dir", "", "/", "dir/"])
def test_directory_is_not_a_file(path: str) -> None:
    with pytest.raises(FormatError, match="is a directory"):
        read(build_iso({"dir/a": b""})).find_file(path)


def test_directory_may_span_sectors() -> None:
    files = {f"file{number:03}": bytes([number]) for number in range(200)}
    image = build_iso(files)
    iso = read(image)
    found = {path: iso.find_file(path) for path in files}
    assert {path: image[file.offset : file.offset + 1] for path, file in found.items()} == files


def test_real_directory_of_two_sectors_is_read() -> None:
    image = fixture("synthetic.iso")
    iso = read(image)
    assert iso.volume_id == "volume-ID-string"
    assert iso.created == datetime(2021, 9, 21, 21, 29, 55, tzinfo=UTC)
    with pytest.raises(FileNotInImage):
        iso.find_file("images/ignition.img")


def test_offsets_beyond_4_gib_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.iso"
    write_sparse_iso(path, {"far": b"content", "near": b""}, {"far": 5 * GIB})
    with path.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        iso = read_iso9660(read_at, path.stat().st_size)
        assert iso.find_file("far") == Span("far", 5 * GIB, 7)
        assert iso.size == path.stat().st_size


def test_sections_of_a_file_are_joined() -> None:
    first = 0xFFFFF800  # the longest section of whole sectors
    records = (
        record(b"BIG;1", 20, first, MULTI_EXTENT),
        record(b"BIG;1", 20 + first // SECTOR, first, MULTI_EXTENT),
        record(b"BIG;1", 20 + 2 * (first // SECTOR), 5),
    )
    image = image_of(*records)
    iso = read_iso9660(reader(image), 20 * GIB)
    assert iso.find_file("big") == Span("big", 20 * SECTOR, 2 * first + 5)


def test_sections_with_a_gap_between_are_refused() -> None:
    image = image_of(record(b"BIG;1", 20, SECTOR, MULTI_EXTENT), record(b"BIG;1", 22, SECTOR))
    with pytest.raises(FormatError, match=f"'big'.* is fragmented.*{22 * SECTOR}.*{21 * SECTOR}"):
        read(image).find_file("big")


def test_missing_last_section_is_refused() -> None:
    with pytest.raises(FormatError, match="lacks its last piece"):
        read(image_of(record(b"BIG;1", 20, SECTOR, MULTI_EXTENT))).find_file("big")


def test_file_outside_the_image_is_refused_with_its_numbers() -> None:
    image = image_of(record(b"A;1", 31, SECTOR + 1))
    with pytest.raises(FormatError, match=f"'a'.*{len(image)} bytes: {SECTOR + 1}.*{31 * SECTOR}"):
        read(image).find_file("a")


def test_file_that_ends_with_the_image_is_accepted() -> None:
    assert read(image_of(record(b"A;1", 31, SECTOR))).find_file("a").length == SECTOR


def test_longest_length_is_refused() -> None:
    image = image_of(record(b"A;1", 0xFFFFFFFF, 0xFFFFFFFF))
    with pytest.raises(FormatError, match="extends beyond the file"):
        read(image).find_file("a")


@pytest.mark.parametrize(("offset", "value"), [(1, 1), (26, 1), (27, 1)])
def test_interleaved_file_is_refused(offset: int, value: int) -> None:
    entry = bytearray(record(b"A;1", 20, 1))
    entry[offset] = value
    with pytest.raises(FormatError, match="interleaved"):
        read(image_of(bytes(entry))).find_file("a")
    with pytest.raises(FormatError, match="interleaved"):
        read(image_of(record(b"A;1", 19, SECTOR, MULTI_EXTENT), bytes(entry))).find_file("a")


def test_directory_that_contains_itself_is_bounded() -> None:
    image = image_of(record(b"LOOP", 18, SECTOR, DIRECTORY))
    iso = read_iso9660(MeteredReader(image, 20 * SECTOR), len(image))
    with pytest.raises(FileNotInImage):
        iso.find_file("loop/" * 1000 + "file")
    with pytest.raises(FileNotInImage):
        iso.find_file("loop/" * 7 + "file")


def test_oversized_directory_is_refused_unread() -> None:
    root = record(b"\0", 18, 2**31, DIRECTORY)
    image = descriptors(root, 32).ljust(32 * SECTOR, b"\0")
    iso = read_iso9660(MeteredReader(image, 2 * SECTOR), 4 * GIB)
    with pytest.raises(FormatError, match=f"directory at offset {ROOT} has {2**31} bytes"):
        iso.find_file("a")


def test_directory_of_zero_bytes_is_empty() -> None:
    with pytest.raises(FileNotInImage):
        read(image_of()).find_file("a")


@pytest.mark.parametrize(
    "damage",
    [
        b"\x01",  # shorter than its fixed part
        b"\x21",  # no room for a name
        b"\x22" + bytes(31) + b"\xff",  # the name is longer than the record
        b"\xff" + bytes(31) + b"\x01",  # valid, but overlaps the next one
    ],
)
def test_damaged_records_are_refused_with_their_offset(damage: bytes) -> None:
    image = patched(image_of(record(b"A;1", 20, 1)), ROOT, damage)
    offset = ROOT + 255 if damage[0] == 255 else ROOT
    image = patched(image, ROOT + 255, b"\x05")
    with pytest.raises(FormatError, match=f"damaged directory record at offset {offset}"):
        read(image).find_file("b")


def test_record_that_crosses_a_sector_is_refused() -> None:
    entry = record(b"A;1", 20, 1)
    filler = [record(b"B;1", 20, 1)] * (SECTOR // len(entry))
    content = b"".join([*filler, entry]).ljust(2 * SECTOR, b"\0")
    assert SECTOR % len(entry)
    root = record(b"\0", 18, len(content), DIRECTORY)
    image = (descriptors(root, 32) + content).ljust(32 * SECTOR, b"\0")
    with pytest.raises(FormatError, match="damaged directory record"):
        read(image).find_file("a")


def test_truncated_image_is_refused_with_both_sizes() -> None:
    image = build_iso({"a": b"x"})
    with pytest.raises(FormatError, match=f"incomplete.* {len(image) - 1} bytes of {len(image)}"):
        read(image[:-1])


def test_hybrid_image_may_be_longer_than_its_volume() -> None:
    image = build_iso({"a": b"x"})
    iso = read(image + bytes(1234))
    assert iso.size == len(image)
    assert iso.find_file("a").length == 1


def test_file_that_shrinks_while_read_is_refused() -> None:
    image = build_iso({"a": b"x"})
    iso = read_iso9660(reader(image[:ROOT]), len(image))
    with pytest.raises(FormatError, match=f"ends too soon: 0 of {SECTOR} bytes at offset {ROOT}"):
        iso.find_file("a")


@pytest.mark.parametrize("length", [0, 1, 2048, 32768, 32769, 34815])
def test_file_without_volume_descriptor_is_no_iso(length: int) -> None:
    with pytest.raises(FormatError, match=r"not an ISO 9660 image.* offset 32768"):
        read(build_iso({})[:length])


def test_primary_descriptor_may_follow_others() -> None:
    image = build_iso({})
    boot = b"\0CD001\x01".ljust(SECTOR, b"\0")
    assert read(image[: 16 * SECTOR] + boot + image[16 * SECTOR :]).volume_id == read(image).volume_id


@pytest.mark.parametrize("kind", [b"\xff", b"\x02"])
def test_image_without_primary_descriptor_is_refused(kind: bytes) -> None:
    descriptor = (kind + b"CD001\x01").ljust(SECTOR, b"\0")
    image = bytes(16 * SECTOR) + descriptor * 5000
    with pytest.raises(FormatError, match="no primary volume descriptor"):
        read_iso9660(MeteredReader(image, 100 * SECTOR), len(image))


def test_other_block_sizes_are_refused() -> None:
    with pytest.raises(FormatError, match="2048"):
        read(patched(build_iso({}), 16 * SECTOR + 128, b"\x00\x10"))


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"2023071911365100\x00", datetime(2023, 7, 19, 11, 36, 51, tzinfo=UTC)),
        (b"2023071911365199\x00", datetime(2023, 7, 19, 11, 36, 51, tzinfo=UTC)),
        (b"2023071911365100\xf0", datetime(2023, 7, 19, 15, 36, 51, tzinfo=UTC)),
        (b"2023071911365100\x13", datetime(2023, 7, 19, 6, 51, 51, tzinfo=UTC)),
        (b"2023071911365100\x34", datetime(2023, 7, 18, 22, 36, 51, tzinfo=UTC)),
        (b"2023071911365100\x35", None),  # beyond the easternmost time zone
        (b"2023071911365100\xcf", None),
        (b"0000000000000000\x00", None),
        (bytes(17), None),
        (b" " * 17, None),
        (b"2023131911365100\x00", None),
        (b"2023023011365100\x00", None),
        (b"2023071911366000\x00", None),
        (b"0001010100000000\x04", None),  # the year 0
        (b"9999123123595900\xd0", None),  # the year 10000
        (b"202307191136510x\x00", datetime(2023, 7, 19, 11, 36, 51, tzinfo=UTC)),
        (b"+023071911365100\x00", None),
    ],
)
def test_volume_dates_are_converted_to_utc(field: bytes, expected: datetime | None) -> None:
    assert read(patched(build_iso({}), 16 * SECTOR + 813, field)).created == expected


def test_absent_volume_date_is_none() -> None:
    assert read(build_iso({}, created=None)).created is None


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.timezones()))  # noqa: DTZ001 - hypothesis adds the zone
def test_any_date_is_read_back(when: datetime) -> None:
    assert read(build_iso({}, created=when)).created == when.replace(microsecond=0).astimezone(UTC)


PARTS = st.text("ABCDEFGHIJ", min_size=1, max_size=8)
TREES = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.binary(max_size=5000), max_size=12
).filter(lambda tree: not any(f"{path}/" in f"{other}/" for path in tree for other in tree if path != other))


@given(TREES)
def test_any_tree_is_read_back(tree: dict[str, bytes]) -> None:
    image = build_iso(tree)
    iso = read(image)
    found = {path: iso.find_file(path) for path in tree}
    assert {path: image[file.offset : file.offset + file.length] for path, file in found.items()} == tree


def test_directory_that_contains_itself_is_listed_once() -> None:
    entries = [record(f"LOOP{n}".encode(), 18, SECTOR, DIRECTORY) for n in range(30)]
    image = image_of(*entries, record(b"A;1", 19, 1))
    iso = read_iso9660(MeteredReader(image, 20 * SECTOR), len(image))
    assert [file.path for file in iso.list_files("LOOP1")] == ["LOOP1/A"]


def test_directories_that_are_listed_are_bounded() -> None:
    size = 256 * 1024
    entries = [record(f"D{n}".encode(), 19 + n, size, DIRECTORY) for n in range(80)]
    listing = b"".join(b"".join(entries[at : at + 40]).ljust(SECTOR, b"\0") for at in (0, 40))
    image = descriptors(record(b"\0", 18, 2 * SECTOR, DIRECTORY), 400) + listing * 190
    iso = read_iso9660(reader(image.ljust(400 * SECTOR, b"\0")), 400 * SECTOR)
    with pytest.raises(FormatError, match="have more than 16777216 bytes"):
        list(iso.list_files("D0"))
