from __future__ import annotations

import os
import re
import stat
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import FormatError, FormatUnread, Unprocessable
from image_service.core.extents import Literal
from image_service.core.formats.filesystems.fat import FatNode, parse_directory, read_fat
from image_service.core.formats.filesystems.fat_edit import FatEditor
from image_service.core.formats.filesystems.file_tree import find_node, fold_case
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.ext4_images import list_nodes
from tests.core.formats.filesystems.file_systems import noise, write_tree
from tests.core.formats.reading import MeteredReader, reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.extents import Overlay

FILES = {
    "EFI/BOOT/BOOTX64.EFI": noise(60_000),
    "EFI/debian/grub.cfg": b"search.fs_uuid 1234\n",
    "loader/loader.conf": b"timeout 5\n",
    "loader/entries/debian-6.1.conf": b"title Debian\noptions quiet\n",
    "loader/entries/other.conf": b"",
    "UPPER.TXT": noise(2048),
    "MiXed.TxT": noise(5000),
    "\N{LATIN SMALL LETTER A WITH DIAERESIS}.conf": b"umlaut",
}
KINDS = {
    "FAT12": ("-F 12", 2048),
    "FAT12 of single sectors": ("-F 12 -s 1", 1024),
    "FAT16": ("-F 16 -s 1", 4096),
    "FAT16 of 4096-byte sectors": ("-F 16 -S 4096 -s 1", 32768),
    "FAT16 with one table": ("-F 16 -s 1 -f 1", 4096),
    "FAT32": ("-F 32", 40960),
    "FAT32 of single sectors": ("-F 32 -s 1", 34816),
    "FAT32 with larger clusters": ("-F 32 -s 2", 70_000),
}
SMALL = {12: ("-F 12 -s 1", 512), 16: ("-F 16 -s 1", 4096), 32: ("-F 32 -s 1", 34816)}
PUTS = {
    "EFI/BOOT/BOOTX64.EFI": noise(90_001),
    "EFI/debian/grub.cfg": b"set timeout=1\n" * 100,
    "loader/entries/debian-6.1.conf": b"title Debian\noptions quiet ignition\n",
    "loader/entries/other.conf": b"no longer empty",
    "UPPER.TXT": b"",
    "MiXed.TxT": noise(700, 7),
    "loader/credentials/ignition.cred": noise(3000),
    "new/directory/of many/names \N{GRINNING FACE}.toml": b"deep",
    "EFI/BOOT/FALLBACK.CSV": b"short",
    "lower.txt": b"lower",
    ".hidden.configuration": b"hidden",
    "a.b.c": b"dots",
    "x" * 255: b"longest",
}


def make_fat(directory: Path, options: str, kibibytes: int, files: Mapping[str, bytes] = FILES) -> bytes:
    image = directory / "fat.img"
    image.unlink(missing_ok=True)
    run_client("mkfs.vfat", "-C", "-i", "1234abcd", *options.split(), image, str(kibibytes))
    if files:
        tree = write_tree(directory / "tree", files)
        run_client("mcopy", "-s", "-Q", "-i", image, *sorted(tree.iterdir()), "::")
    return image.read_bytes()


def open_editor(image: bytes) -> FatEditor:
    return FatEditor(reader(image), len(image))


def apply(image: bytes, patches: tuple[Overlay, ...]) -> bytes:
    patched, end = bytearray(image), 0
    for patch in patches:
        assert isinstance(patch.data, Literal)
        assert patch.data.data
        assert end <= patch.offset
        end = patch.stop
        patched[patch.offset : end] = patch.data.data
    assert len(patched) == len(image)
    return bytes(patched)


def edit(image: bytes, puts: Mapping[str, bytes]) -> bytes:
    editor = open_editor(image)
    for path, content in puts.items():
        editor.put(path, content)
    return apply(image, editor.finish())


def read_files(image: bytes) -> dict[str, object]:
    nodes = list_nodes(read_fat(reader(image), len(image)).root)
    return {path: content for path, content in nodes.items() if content is not None}


def check(directory: Path, image: bytes, expected: Mapping[str, bytes]) -> None:
    """Compare with what this package's reader and two foreign programs find."""
    assert read_files(image) == expected
    file = directory / "edited.img"
    file.write_bytes(image)
    run_client("fsck.vfat", "-n", "-v", file)
    with TemporaryDirectory() as name:
        run_client("mcopy", "-s", "-Q", "-i", file, "::", name)
        assert {path: Path(name, path).read_bytes() for path in expected if path.isascii()} == {
            path: content for path, content in expected.items() if path.isascii()
        }


@pytest.mark.parametrize(("options", "kibibytes"), KINDS.values(), ids=KINDS)
def test_edited_files_are_those_that_were_put(tmp_path: Path, options: str, kibibytes: int) -> None:
    image = make_fat(tmp_path, options, kibibytes)

    check(tmp_path, edit(image, PUTS), {**FILES, **PUTS})


def test_edit_of_an_edit(tmp_path: Path) -> None:
    image, expected = make_fat(tmp_path, "-F 32 -s 1", 34816), dict(FILES)
    for path, content in PUTS.items():
        image, expected[path] = edit(image, {path: content}), content

    check(tmp_path, image, expected)
    assert edit(image, FILES) != image
    check(tmp_path, edit(image, FILES), {**expected, **FILES})


def test_order_of_puts_changes_nothing(tmp_path: Path) -> None:
    image = make_fat(tmp_path, "-F 16 -s 1", 4096)

    assert edit(image, PUTS) == edit(image, dict(reversed(PUTS.items())))


def test_equal_content_gives_no_patch(tmp_path: Path) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 32 -s 1", 34816))
    for path, content in FILES.items():
        editor.put(path.upper(), content)

    assert editor.finish() == ()


def test_content_of_equal_size_changes_its_own_sectors_only(tmp_path: Path) -> None:
    image = make_fat(tmp_path, "-F 12", 2048)
    content = bytearray(FILES["EFI/BOOT/BOOTX64.EFI"])
    content[30_000] ^= 1
    editor = open_editor(image)
    editor.put("EFI/BOOT/BOOTX64.EFI", bytes(content))

    (patch,) = editor.finish()

    assert patch.data.length == 512
    assert sum(a != b for a, b in zip(image, apply(image, (patch,)), strict=True)) == 1


def test_edit_is_read_before_it_is_finished(tmp_path: Path) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 12", 2048))
    editor.put("/efi//boot/bootx64.efi", b"new")
    editor.put("EFI/Extra/x.efi", b"extra")

    assert editor.read("EFI/BOOT/BOOTX64.EFI") == b"new"
    assert editor.read("EFI/extra/X.EFI") == b"extra"
    assert editor.read("UPPER.TXT") == FILES["UPPER.TXT"]
    assert editor.read("EFI/BOOT") is editor.read("none") is editor.read("EFI/Extra") is None
    assert editor.list("EFI") == {"BOOT": True, "debian": True, "Extra": True}
    assert editor.list("EFI/boot") == {"BOOTX64.EFI": False}
    assert editor.list("EFI/EXTRA") == {"x.efi": False}
    assert editor.list("none") is editor.list("UPPER.TXT") is None
    assert (editor.list("/") or {})["UPPER.TXT"] is False


def test_finish_twice_gives_the_same(tmp_path: Path) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 12", 2048))
    for path, content in PUTS.items():
        editor.put(path, content)

    assert editor.finish() == editor.finish()


def test_dates_are_those_of_the_directory_or_file_before(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", FILES)
    for path, seconds in ((tree / "loader", 1_000_000_000), (tree / "EFI/debian/grub.cfg", 1_100_000_000)):
        os.utime(path, (seconds, seconds))
    image = tmp_path / "fat.img"
    run_client("mkfs.vfat", "-C", image, "2048")
    run_client("mcopy", "-s", "-Q", "-m", "-i", image, *sorted(tree.iterdir()), "::")
    puts = {"loader/new/file": b"", "EFI/debian/grub.cfg": b"new", "ROOT": b"", "loader/LATER": b""}
    edited = tmp_path / "edited.img"
    edited.write_bytes(edit(image.read_bytes(), puts))

    listed = {path: run_client("mdir", "-i", edited, f"::{path}").decode() for path in puts}

    assert "2001-09-09" in listed["loader/new/file"]
    assert "2001-09-09" in listed["loader/LATER"]
    assert "2004-11-09" in listed["EFI/debian/grub.cfg"]
    assert "1980-01-01" in listed["ROOT"]


def test_dates_in_the_root_are_those_of_the_label(tmp_path: Path) -> None:
    image = bytearray(make_fat(tmp_path, "-F 12 -n LABEL", 2048, {}))
    label = image.index(b"LABEL      \x08")
    struct.pack_into("<HH", image, label + 22, 0, (2020 - 1980) << 9 | 2 << 5 | 29)
    (tmp_path / "fat.img").write_bytes(edit(bytes(image), {"new": b""}))

    assert b"2020-02-29" in run_client("mdir", "-i", tmp_path / "fat.img", "::new")


def test_letters_are_compared_one_by_one(tmp_path: Path) -> None:
    sharp, sigma = "stra\N{LATIN SMALL LETTER SHARP S}e", "\N{GREEK SMALL LETTER FINAL SIGMA}"
    editor = open_editor(
        edit(make_fat(tmp_path, "-F 12", 2048), {sharp: b"sharp", "strasse": b"s", sigma: b""})
    )

    assert editor.read(sharp.upper().replace("SS", sharp[4])) == editor.read(sharp) == b"sharp"
    assert editor.read("STRASSE") == b"s"
    assert editor.read("\N{GREEK CAPITAL LETTER SIGMA}") == editor.read("\N{GREEK SMALL LETTER SIGMA}") == b""


def test_short_names_are_unique(tmp_path: Path) -> None:
    names = [f"configuration-{number}.yaml" for number in range(120)]
    names += ["CONFIG~3.YAM", "config.yaml", "config.yam", "conf ig.yam", "\N{CYRILLIC SMALL LETTER A}.yam"]
    image = edit(make_fat(tmp_path, "-F 12", 2048), {f"many/{name}": name.encode() for name in names})

    check(tmp_path, image, {**FILES, **{f"many/{name}": name.encode() for name in names}})
    volume = read_fat(reader(image), len(image))
    many = volume.root.entries()["many"]()
    aliases = [entry.alias for entry in parse_directory(many._read_listing())]
    assert len(set(aliases)) == len(aliases) == len(names) + 2
    assert {"CONFIG~3.YAM", "CONFIG.YAM"} <= set(aliases)


def test_short_name_of_another_file_is_refused(tmp_path: Path) -> None:
    image = edit(make_fat(tmp_path, "-F 12", 2048), {"configuration.yaml": b""})

    for name in ("CONFIG~1.YAM", "config~1.yam"):
        with pytest.raises(Unprocessable, match=r"short name of 'configuration\.yaml'"):
            edit(image, {name: b""})


@pytest.mark.slow
@pytest.mark.parametrize("bits", SMALL)
def test_full_file_system(tmp_path: Path, bits: int) -> None:
    image = make_fat(tmp_path, *SMALL[bits])
    file = tmp_path / "fat.img"
    report = run_client("fsck.vfat", "-n", "-v", file).decode()
    used, clusters = map(int, re.findall(r"(\d+)/(\d+) clusters", report)[0])
    free, (size,) = clusters - used, map(int, re.findall(r"(\d+) bytes per cluster", report))

    check(tmp_path, edit(image, {"FULL": bytes(free * size)}), {**FILES, "FULL": bytes(free * size)})
    with pytest.raises(Unprocessable, match=rf": {free + 2} clusters of {size} bytes are needed, {free} are"):
        edit(image, {"DIR/FULL": bytes(free * size + 1)})
    # What a replaced file frees is there for others, whatever their order.
    more = -(-len(FILES["EFI/BOOT/BOOTX64.EFI"]) // size)
    puts = {"A": bytes((free + more) * size), "EFI/BOOT/BOOTX64.EFI": b""}
    check(tmp_path, edit(image, puts), {**FILES, **puts})


def test_fixed_root_is_filled_and_then_refused(tmp_path: Path) -> None:
    image = make_fat(tmp_path, "-F 12 -r 32", 2048, {"longer than 8 and 3": b"", "B": b""})
    run_client("mdel", "-i", tmp_path / "fat.img", "::longer than 8 and 3")
    image = (tmp_path / "fat.img").read_bytes()
    puts = {f"F{number}": b"%d" % number for number in range(28)} | {"a name of 3 entries": b""}

    check(tmp_path, edit(image, puts), {"B": b"", **puts})
    with pytest.raises(Unprocessable, match="root directory has 1 free entries of 32; 2 in a row"):
        edit(image, {**dict.fromkeys(list(puts)[:27], b""), "a name of 3 entries": b"", "z": b""})


@pytest.mark.parametrize(("options", "kibibytes"), SMALL.values())
def test_directories_grow(tmp_path: Path, options: str, kibibytes: int) -> None:
    puts = {f"EFI/BOOT/a name of three entries {number}": b"%d" % number for number in range(60)}

    check(tmp_path, edit(make_fat(tmp_path, options, kibibytes), puts), {**FILES, **puts})


def test_directory_of_the_largest_size_is_refused(tmp_path: Path) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 32 -s 1", 34816))
    for number in range(3000):
        editor.put(f"many/{'x' * 240}{number}", b"")

    with pytest.raises(Unprocessable, match=r"'many/' would have \d+ bytes of at most 1048576"):
        editor.finish()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "0 names"),
        ("//", "0 names"),
        ("a/" * 70, "70 names"),
        ("EFI/../x", "has '.' at its end"),
        ("EFI/./x", "has '.' at its end"),
        ("ends in a blank ", "has ' ' at its end"),
        ("back\\slash", r"it has '\\\\'"),
        ("a:b", "it has ':'"),
        ("a\0b", r"it has '\\x00'"),
        ("a\nb", r"it has '\\n'"),
        ("what?", r"it has '\?' at its end"),
        ("\ud800", r"it has '\\ud800'"),
        ("x" * 256, "it has 256 UTF-16 units of 255"),
        ("\N{GRINNING FACE}" * 128, "it has 256 UTF-16 units of 255"),
    ],
)
def test_names_that_fat_cannot_store_are_refused(tmp_path: Path, path: str, message: str) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 12", 2048))

    with pytest.raises(Unprocessable, match=message):
        editor.put(path, b"")
    assert editor.finish() == ()


@pytest.mark.parametrize(
    ("puts", "message"),
    [
        (["EFI/BOOT"], "EFI/BOOT is a directory"),
        (["efi"], "efi is a directory"),
        (["UPPER.TXT/file"], "UPPER.TXT is a file"),
        (["new", "new/file"], "new is a file"),
        (["new/file", "NEW"], "new is a file|NEW is a file"),
    ],
)
def test_file_in_place_of_a_directory_is_refused(tmp_path: Path, puts: list[str], message: str) -> None:
    editor = open_editor(make_fat(tmp_path, "-F 12", 2048))
    for path in puts:
        editor.put(path, b"")

    with pytest.raises(Unprocessable, match=message):
        editor.finish()


def test_number_of_free_clusters_is_kept(tmp_path: Path) -> None:
    image = make_fat(tmp_path, "-F 32 -s 1", 34816)

    def free(image: bytes) -> int:
        (tmp_path / "fat.img").write_bytes(image)
        return int(re.findall(rb"free clusters=(\d+)", run_client("minfo", "-i", tmp_path / "fat.img"))[0])

    assert free(edit(image, {"EFI/BOOT/BOOTX64.EFI": b""})) == free(image) + -(-60_000 // 512)
    assert free(edit(image, {"NEW/FILE": bytes(1000)})) == free(image) - 3


def test_unknown_number_of_free_clusters_stays_unknown(tmp_path: Path) -> None:
    image = bytearray(make_fat(tmp_path, "-F 32 -s 1", 34816))
    image[512 + 488 : 512 + 492] = b"\xff" * 4

    edited = edit(bytes(image), {"NEW/FILE": bytes(1000)})

    assert edited[512 + 488 : 512 + 492] == b"\xff" * 4


def test_table_that_is_not_used_is_not_changed(tmp_path: Path) -> None:
    image = bytearray(make_fat(tmp_path, "-F 32 -s 1", 34816))
    reserved, table = (
        struct.unpack_from("<H", image, 14)[0] * 512,
        struct.unpack_from("<I", image, 36)[0] * 512,
    )
    struct.pack_into("<H", image, 40, 0x81)
    image[reserved + 8 : reserved + table] = b"\x55" * (table - 8)

    edited = edit(bytes(image), PUTS)

    assert read_files(edited) == {**FILES, **PUTS}
    assert edited[reserved : reserved + table] == image[reserved : reserved + table]
    struct.pack_into("<H", image, 40, 0x82)
    with pytest.raises(FormatError, match="uses table 2 of 2"):
        open_editor(bytes(image))


def test_bytes_after_the_last_entry_do_not_become_files(tmp_path: Path) -> None:
    image = bytearray(make_fat(tmp_path, "-F 12", 2048, {"DIR/FILE": b""}))
    entry = image.index(b"FILE    ") + 64
    image[entry : entry + 64] = b"GHOST1  TXT\x20".ljust(32, b"\0") + b"GHOST2  TXT\x20".ljust(32, b"\0")

    assert read_files(edit(bytes(image), {"DIR/NEW": b""})) == {"DIR/FILE": b"", "DIR/NEW": b""}


def test_files_that_share_clusters_are_refused(tmp_path: Path) -> None:
    image = bytearray(make_fat(tmp_path, "-F 12", 2048, {"A": b"a", "B": b"b"}))
    first, second = (image.index(name.ljust(11)) + 26 for name in (b"A", b"B"))
    image[second : second + 2] = image[first : first + 2]

    with pytest.raises(FormatError, match="two files have cluster"):
        edit(bytes(image), {"A": b"1", "B": b"2"})


def test_table_without_bounds_is_not_read() -> None:
    sector = bytearray(512)
    struct.pack_into("<HBHBHHB", sector, 11, 512, 8, 32, 2, 0, 0, 0xF8)
    struct.pack_into("<II4xI", sector, 32, 0xFFFF_FFF0, 0x40_0000, 2)
    sector[510:] = b"\x55\xaa"

    def read_at(offset: int, length: int) -> bytes:
        assert length < 1 << 20
        return bytes(sector) if offset == 0 else bytes(length)

    editor = FatEditor(read_at, 1 << 42)
    editor.put("file", b"")

    with pytest.raises(
        FormatUnread, match="535822330 clusters of 32 bits in its table, of which at most 8388608"
    ):
        editor.finish()


def test_reads_of_an_edit_are_few(tmp_path: Path) -> None:
    image = make_fat(tmp_path, "-F 32 -s 1", 348160)
    meter = MeteredReader(image, 200_000)
    editor = FatEditor(meter, len(image))
    editor.put("loader/entries/new.conf", noise(1_000_000))

    assert read_files(apply(image, editor.finish()))["loader/entries/new.conf"] == noise(1_000_000)


LETTERS = "abAB~1. -_+\N{LATIN SMALL LETTER SHARP S}\N{GREEK SMALL LETTER FINAL SIGMA}\N{GRINNING FACE}"
NAMES = st.one_of(
    st.sampled_from(["EFI", "BOOT", "loader", "entries", "MiXed.TxT", "new", "UPPER.TXT"]),
    st.text(LETTERS, min_size=1, max_size=30).filter(lambda name: name[-1] not in ". "),
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
CONTENTS = st.builds(noise, st.integers(0, 5000), st.integers(1, 8))


def is_possible(path: str, files: Mapping[str, bytes]) -> bool:
    """Whether a file can be put beside others, whose paths are in capitals."""
    folded = fold_case(path)
    return not any(file.startswith(f"{folded}/") or folded.startswith(f"{file}/") for file in files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "examples"), [(12, 60), (16, 60), (32, 5), pytest.param(16, 2000, marks=pytest.mark.soak)]
)
def test_random_edits(tmp_path: Path, bits: int, examples: int) -> None:
    base = make_fat(tmp_path, *SMALL[bits])
    finished = [0]

    @settings(max_examples=examples)
    @given(st.lists(st.lists(st.tuples(PATHS, CONTENTS), max_size=12), min_size=1, max_size=3))
    def edit_randomly(rounds: list[list[tuple[str, bytes]]]) -> None:
        image, expected = base, {fold_case(path): content for path, content in FILES.items()}
        for wanted in rounds:
            after, puts = dict(expected), dict[str, bytes]()
            for path, content in wanted:
                if is_possible(path, after) and fold_case(path) not in map(fold_case, puts):
                    puts[path] = after[fold_case(path)] = content
            try:
                edited = edit(image, puts)
            except Unprocessable as error:
                assert "no room" in error.detail or "is the short name of" in error.detail  # noqa: PT017
                continue
            assert edited == edit(image, dict(reversed(puts.items())))
            image, expected = edited, after
            finished[0] += 1
        assert {fold_case(path): content for path, content in read_files(image).items()} == expected
        (tmp_path / "edited.img").write_bytes(image)
        run_client("fsck.vfat", "-n", tmp_path / "edited.img")

    edit_randomly()
    assert finished[0] > examples


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "examples"),
    [(32, 100), *(pytest.param(bits, 5000, marks=pytest.mark.soak) for bits in (12, 16, 32))],
)
def test_altered_bytes_are_edited_or_refused(tmp_path: Path, bits: int, examples: int) -> None:
    # mtools refuses such a small FAT32.
    image = edit(make_fat(tmp_path, f"-F {bits} -s 1", {12: 512, 16: 4096, 32: 1024}[bits], {}), FILES)
    size, used = len(image), [offset for offset, byte in enumerate(image) if byte and offset < 100_000]

    @settings(max_examples=examples)
    @given(
        st.lists(st.tuples(st.sampled_from(used), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4)
    )
    def alter(changes: list[tuple[int, bytes]]) -> None:
        altered = bytearray(image)
        for position, data in changes:
            altered[position : position + len(data)] = data
        try:
            editor = FatEditor(MeteredReader(bytes(altered), 8 * size), size)
            for path, content in PUTS.items():
                editor.put(path, content)
            editor.list("EFI")
            edited = apply(bytes(altered), editor.finish())
        except (FormatError, Unprocessable):
            return
        root = read_fat(reader(edited), size).root
        for path, content in PUTS.items():
            node = find_node(root, path)
            assert isinstance(node, FatNode)
            assert stat.S_ISREG(node.mode)
            assert node.read() == content
        assert edit(edited, PUTS) == edited

    alter()
