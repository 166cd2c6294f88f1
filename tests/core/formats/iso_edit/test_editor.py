"""Edited ISOs as foreign tools read them: xorriso, isoinfo, isovfy and sgdisk."""

from __future__ import annotations

import random
import tracemalloc
from functools import cache
from operator import le
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import clear_frames
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import FormatError, FormatUnread, Unprocessable
from image_service.core.extents import Literal, Zeros
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso_edit.editor import MAX_FILE, IsoEditor
from image_service.core.formats.iso_edit.partitions import HybridTables
from tests.acceptance.clients import run_client
from tests.core.formats.iso_edit.isos import (
    COMMANDS,
    FILES,
    MemoryFile,
    base_of,
    edit,
    extract,
    faults_by_isovfy,
    joliet_files_by_isoinfo,
    make_iso,
    problems_by_sgdisk,
    trees_by_xorriso,
)
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.iso_edit.editor import IsoPlan

pytestmark = pytest.mark.slow
LAYOUTS = list(COMMANDS)
EACH_RUN = {"hybrid-gpt", "appended-esp-in-mbr"}
"""Of the largest edit; the next test edits all layouts."""

NAMES = st.sampled_from(
    [
        *("boot", "EFI", "pool", "nocloud", "x", "y", "a-directory-with-a-long-name"),
        *("user-data", "meta-data", "preseed.cfg", "Case", "case.d", "ümlaut.txt", "1.2.3.4", "empty"),
    ]
)
PATHS = st.one_of(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join),
    st.sampled_from(sorted(FILES)),
    st.integers(0, 400).map("many/file-{0}.with-a-rather-long-name-that-fills-sectors".format),
)
CONTENTS = st.integers(0, 5000).map(lambda size: (b"%d " % size * size)[:size])
"""Of up to three sectors; hypothesis draws bytes of some dozens at most, whatever their limit is."""
PUTS = st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=60)


def is_possible(puts: Mapping[str, bytes]) -> bool:
    """Return False if a path is a directory of another, or two differ in their case alone."""
    paths = [*FILES, *puts]
    folders = {path[:i].casefold() for path in paths for i, mark in enumerate(path) if mark == "/"}
    folded = {path.casefold() for path in {*paths}}
    spelled = {path[:i] for path in paths for i, mark in enumerate(path) if mark == "/"}
    return not folders & folded and len(folded) == len({*paths}) and len(spelled) == len(folders)


def check(layout: str, puts: Mapping[str, bytes], directory: Path) -> None:
    base = make_iso(layout)
    edited, plan = edit(base, puts)
    expected = {**FILES, **puts}
    partitions = [edited[start:] for start in HybridTables(base_of(base).read_at, len(base)).volumes]
    isos: list[tuple[bytes, tuple[str, ...]]] = [(data, ()) for data in (edited, *partitions)]
    if "-J" in COMMANDS[layout]:
        isos.append((edited, ("-read_fs", "norock")))
        assert joliet_files_by_isoinfo(edited, directory) == expected.keys()
    assert all(files == expected for files in trees_by_xorriso(isos, directory))
    found = faults_by_isovfy(edited, directory), problems_by_sgdisk(edited, directory)
    assert all(map(le, found, problems_of_base(layout)))
    check_untouched(base, edited, plan)


@cache
def problems_of_base(layout: str) -> tuple[int, int]:
    """Return what isovfy and sgdisk find in an ISO that is not edited."""
    with TemporaryDirectory() as name:
        base, directory = make_iso(layout), Path(name)
        return faults_by_isovfy(base, directory), problems_by_sgdisk(base, directory)


def check_untouched(base: bytes, edited: bytes, plan: IsoPlan) -> None:
    """Check that the bytes between overlays are those of the base."""
    position = 0
    for overlay in plan.overlays:
        assert edited[position : overlay.offset] == base[position : overlay.offset]
        position = overlay.stop
    assert edited[position : len(base)] == base[position:]


@pytest.mark.parametrize("layout", [layout if layout in EACH_RUN else soaked(layout) for layout in LAYOUTS])
def test_files_are_added_and_replaced_in_all_trees(layout: str, tmp_path: Path) -> None:
    puts = {
        "boot/grub/grub.cfg": b"set timeout=1\n",
        "boot/initrd.img": b"longer than before" * 9000,
        "nocloud/user-data": b"#cloud-config\n",
        "nocloud/meta-data": b"",
        "preseed.cfg": b"d-i debian-installer/locale string en_US\n" * 100,
        "deep/er/than/all/of/them/file": b"deep",
        **{f"many/a-name-long-enough-to-fill-some-sectors-{n:03}": b"%d" % n for n in range(300)},
    }
    check(layout, puts, tmp_path)


@pytest.mark.timeout(1800)  # hundreds, on a slow machine
@pytest.mark.parametrize("part", [0, *(soaked(number) for number in range(1, 40))])
def test_any_edits_are_read_by_foreign_tools(part: int, tmp_path: Path) -> None:
    """500 edits, which are the same in each run of part 0.

    Hypothesis keeps 20 KB of each until they end. The reactor turns then, and empties the pipe with a byte of
    each program that ended: when it is full, pytest keeps an error and 0.9 MB of each further program.
    """

    @settings(max_examples=500, deadline=None, derandomize=part == 0)
    @given(layout=st.sampled_from(LAYOUTS), puts=PUTS.filter(is_possible))
    def check_any(layout: str, puts: Mapping[str, bytes]) -> None:
        try:
            check(layout, puts, tmp_path)
        except AssertionError as error:
            clear_frames(error.__traceback__)  # hypothesis keeps each error, and so 3 MB of variables
            raise

    check_any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_order_of_puts_changes_no_byte(layout: str) -> None:
    base = make_iso(layout)
    puts = [(f"d{n % 5}/file{n}", b"%d" % n * n) for n in range(60)]
    expected, _ = edit(base, dict(puts))
    for seed in range(3):
        random.Random(seed).shuffle(puts)  # noqa: S311 - an order
        assert edit(base, dict(puts))[0] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edited_iso_is_edited_again(layout: str, tmp_path: Path) -> None:
    edited = make_iso(layout)
    puts = {}
    for number in range(3):
        puts[f"again/file{number}"] = b"%d" % number
        puts["boot/grub/grub.cfg"] = b"# %d\n" % number
        edited, _ = edit(edited, {**puts})
    assert extract(edited, tmp_path) == {**FILES, **puts}
    assert problems_by_sgdisk(edited, tmp_path) <= problems_by_sgdisk(make_iso(layout), tmp_path)


def test_patches_alone_keep_the_size() -> None:
    base = base_of(make_iso("hybrid-gpt"))
    editor = IsoEditor(base)
    editor.patch(5, Literal(b"later"))
    editor.patch(0, Literal(b"first"))
    editor.patch(10, Zeros(0))
    plan = editor.finish()
    assert [overlay.offset for overlay in plan.overlays] == [0, 5]
    assert plan.tail == ()
    assert plan.apply(base).size == base.size


@pytest.mark.parametrize("layout", ["hybrid-gpt", "appended-esp-in-mbr"])
def test_patches_of_a_partition_move_with_it(layout: str) -> None:
    data = make_iso(layout)
    base, at = base_of(data), data.index(b"ESP." * 4)
    editor = IsoEditor(base)
    editor.patch(at + 4, Literal(b"HERE"))
    editor.put("file", (Literal(b"1"),))
    edited = editor.finish().apply(base)
    read = edited.read_at(0, edited.size)
    moved = read.index(b"ESP.HEREESP.", at + 12)
    assert moved % (1 << 20) == 0
    assert read[moved + 8 :].startswith(b"ESP." * 1000)


def test_el_torito_follows_the_moved_partition(tmp_path: Path) -> None:
    edited, _ = edit(make_iso("appended-esp-in-mbr"), {"file": b"1"})
    image = tmp_path / "image.iso"
    image.write_bytes(edited)
    report = run_client("xorriso", "-indev", image, "-report_el_torito", "plain").decode()
    (line,) = [line for line in report.splitlines() if "boot img" in line]
    assert int(line.split()[-1]) * SECTOR == edited.index(b"ESP." * 4, len(make_iso("appended-esp-in-mbr")))


@pytest.mark.parametrize("layout", ["hybrid-gpt", "appended-esp-in-mbr"])
def test_volume_covers_the_moved_partition_as_before(layout: str) -> None:
    """OVMF takes a boot image without a size for the rest of the volume, and boots none that is behind it."""
    base = make_iso(layout)
    edited, _ = edit(base, {"file": b"1"})
    for data in (base, edited):
        volume, partition = 16 * SECTOR, 32 * SECTOR
        assert int.from_bytes(data[volume + 80 : volume + 84], "little") == len(data) // SECTOR
        end = int.from_bytes(data[partition + 80 : partition + 84], "little") * SECTOR + 16 * SECTOR
        assert end <= data.index(b"ESP." * 4, len(base) if data is edited else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_found_and_listed(layout: str) -> None:
    editor = IsoEditor(base_of(make_iso(layout)))
    for path, content in FILES.items():
        found = editor.find(path)
        assert found is not None
        assert found.read_at(0, found.size) == content
    assert editor.list("boot") == {"grub": True, "vmlinuz": False, "initrd.img": False}
    assert editor.list("absent") is None
    assert editor.find("absent/file") is None
    assert editor.find("boot") is None


@pytest.mark.parametrize("path", ["", "/", "/etc", "a//b", "a/", ".", "../x", "a/../b", "a/./b", "a\0b"])
def test_paths_that_no_iso_has_are_refused(path: str) -> None:
    with pytest.raises(Unprocessable, match="not the path of a file"):
        IsoEditor(base_of(make_iso("rock-ridge-and-joliet"))).put(path, ())


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("boot/vmlinuz/file", "'boot/vmlinuz' in the ISO is not a directory"),
        ("boot/grub", "'boot/grub' in the ISO is a directory"),
        ("n" * 151, "151 bytes, more than 150"),
        ("a:b", "not of Joliet"),
        ("/".join("d" * 40), "more than 32 levels"),
    ],
)
def test_paths_that_this_iso_cannot_have_are_refused(path: str, reason: str) -> None:
    with pytest.raises(Unprocessable, match=reason):
        edit(make_iso("rock-ridge-and-joliet"), {path: b""})


@pytest.mark.parametrize("puts", [{"KS.CFG": b"1", "ks.cfg": b"2"}, {"Empty": b"1"}])
def test_names_that_differ_in_case_only_are_refused_where_joliet_is(puts: Mapping[str, bytes]) -> None:
    with pytest.raises(Unprocessable, match="in case only"):
        edit(make_iso("rock-ridge-and-joliet"), puts)
    edit(make_iso("appended-esp-in-mbr"), puts)


def test_iso_without_a_primary_descriptor_is_refused() -> None:
    data = bytearray(make_iso("rock-ridge-and-joliet"))
    data[16 * SECTOR] = 0  # of a boot record: Joliet's is the only volume
    with pytest.raises(FormatError, match="no primary volume descriptor"):
        IsoEditor(base_of(bytes(data)))


def test_file_of_4_gib_is_refused() -> None:
    editor = IsoEditor(base_of(make_iso("rock-ridge-and-joliet")))
    with pytest.raises(Unprocessable, match=r"4294967296 bytes, more than the 4294965248"):
        editor.put("file", (Zeros(MAX_FILE), Zeros(SECTOR)))


def test_iso_with_udf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    image = tmp_path / "udf.iso"
    run_client("genisoimage", "-quiet", "-udf", "-o", image, tmp_path / "tree")
    with pytest.raises(FormatUnread, match="UDF"):
        IsoEditor(base_of(image.read_bytes()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edit_reads_little(layout: str) -> None:
    file = MemoryFile(make_iso(layout))
    editor = IsoEditor(base_of(file))
    editor.put("nocloud/user-data", (Literal(b"x"),))
    editor.put("boot/grub/grub.cfg", (Literal(b"x"),))
    editor.finish()
    assert len(file.reads) <= 150
    assert sum(file.reads) <= 1 << 20


@pytest.mark.parametrize("number", [800, soaked(3000)])
def test_edit_of_an_iso_with_many_directories_reads_little(tmp_path: Path, number: int) -> None:
    """As installers have them, in four trees: of the image and of its partition, with Joliet or not."""
    for index in range(number):
        directory = tmp_path / "tree" / "pool" / f"{index % 30:02}" / f"package-with-a-long-name-{index:04}"
        directory.mkdir(parents=True)
        (directory / "a.deb").touch()
    (tmp_path / "tree" / "boot" / "grub").mkdir(parents=True)
    (tmp_path / "tree" / "boot" / "grub" / "grub.cfg").write_text("menu")
    image = tmp_path / "image.iso"
    options = ("-r", "-J", "-partition_offset", "16", "-o", image, tmp_path / "tree")
    run_client("xorriso", "-as", "mkisofs", "-quiet", *options)
    file = MemoryFile(image.read_bytes())
    base = base_of(file)
    tracemalloc.start()
    editor = IsoEditor(base)
    for path in ("nocloud/user-data", "boot/grub/grub.cfg", "preseed.cfg"):
        editor.put(path, (Literal(b"x"),))
    edited = editor.finish().apply(base)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(file.reads) <= 150
    assert sum(file.reads) <= 1 << 20
    assert peak <= 32 << 20
    files = extract(edited.read_at(0, edited.size), tmp_path)
    assert (len(files), files["nocloud/user-data"]) == (number + 3, b"x")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_damaged_isos_are_edited_or_refused(layout: str, count: int) -> None:
    data = make_iso(layout)
    metadata = min(400 * SECTOR, len(data))
    for seed in range(count):
        numbers = random.Random(seed)  # noqa: S311 - of the test
        damaged = bytearray(data)
        for _ in range(numbers.choice([1, 3, 10])):
            damaged[numbers.choice([numbers.randrange(2048), numbers.randrange(32768, metadata)])] = (
                numbers.randrange(256)
            )
        try:
            edit(bytes(damaged), {"new/file": b"1", "boot/grub/grub.cfg": b"2", "pool/p01/new": b"3"})
        except (FormatError, Unprocessable):
            continue
