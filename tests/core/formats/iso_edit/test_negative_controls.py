"""What an edit leaves out is missed: each step that was found by booting, left out, fails as it did there.

With USB media, Linux mounts the first partition that holds the ISO, reads its own descriptors, and nothing
behind its end; UEFI skips partitions that overlap.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.partitions import read_partitions
from tests.acceptance.clients import run_client
from tests.core.formats.iso_edit.isos import (
    COMMANDS,
    FILES,
    base_of,
    edit,
    extract,
    make_iso,
    problems_by_sgdisk,
)
from tests.core.formats.iso_edit.omissions import (
    grow_no_partition,
    leave_trees_of_partitions,
    move_no_partition,
)
from tests.core.formats.iso_edit.test_editor import PUTS, is_possible
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from image_service.core.formats.disk.partitions import Partition

pytestmark = pytest.mark.slow

PUT = {"nocloud/user-data": b"#cloud-config\n" * 1000}
HYBRID = ("hybrid-gpt", "appended-esp-in-mbr")


def partitions(data: bytes) -> list[Partition]:
    table = read_partitions(base_of(data).read_at, len(data))
    assert table is not None
    return sorted(table.partitions, key=lambda each: each.offset)


def mounted(data: bytes, directory: Path) -> Mapping[str, bytes]:
    """Return the files of the partition that holds the ISO, read up to its end; none if it is cut off."""
    found = partitions(data)[0]
    with suppress(AssertionError):
        return extract(data[found.offset : found.offset + found.length], directory)
    return {}


def overlap(data: bytes) -> bool:
    first, second, *_ = partitions(data)
    return first.offset + first.length > second.offset


@pytest.mark.parametrize("layout", HYBRID)
def test_nothing_is_missed_of_a_whole_edit(layout: str, tmp_path: Path) -> None:
    base = make_iso(layout)
    edited, _ = edit(base, PUT)
    assert mounted(edited, tmp_path) == {**FILES, **PUT}
    assert not overlap(edited)
    assert problems_by_sgdisk(edited, tmp_path) <= problems_by_sgdisk(base, tmp_path)


@pytest.mark.parametrize("layout", HYBRID)
def test_without_the_trees_of_the_partition_its_files_are_absent(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_trees_of_partitions(monkeypatch)
    edited, _ = edit(make_iso(layout), PUT)
    assert mounted(edited, tmp_path) == FILES
    assert extract(edited, tmp_path) == {**FILES, **PUT}  # as a CD has them


@pytest.mark.parametrize("layout", HYBRID)
def test_without_growth_the_partition_ends_before_its_new_files(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_no_partition(monkeypatch)
    edited, _ = edit(make_iso(layout), PUT)
    assert mounted(edited, tmp_path) == {}
    assert extract(edited, tmp_path) == {**FILES, **PUT}


@pytest.mark.parametrize("layout", HYBRID)
def test_system_partition_that_does_not_move_is_overlapped(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_no_partition(monkeypatch)
    base = make_iso(layout)
    edited, _ = edit(base, PUT)
    assert overlap(edited)
    if layout == "hybrid-gpt":
        assert problems_by_sgdisk(edited, tmp_path) > problems_by_sgdisk(base, tmp_path)


def test_protective_partition_behind_the_iso_is_damage() -> None:
    damaged = bytearray(make_iso("hybrid-gpt"))
    entry = next(at for at in range(446, 510, 16) if damaged[at + 4] == 0xEE)
    damaged[entry + 8 : entry + 12] = (15269889).to_bytes(4, "little")
    with pytest.raises(FormatError, match="begins at offset 7818183168, behind"):
        edit(bytes(damaged), PUT)


@pytest.mark.timeout(7200)  # hundreds of calls of xorriso, on a slow machine
@pytest.mark.parametrize("examples", [6, soaked(300)])
def test_tree_is_that_of_an_iso_which_xorriso_rebuilds(examples: int, tmp_path: Path) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(layout=st.sampled_from(list(COMMANDS)), puts=PUTS.filter(is_possible))
    def compare(layout: str, puts: Mapping[str, bytes]) -> None:
        base, rebuilt = tmp_path / "base.iso", tmp_path / "rebuilt.iso"
        base.write_bytes(make_iso(layout))
        rebuilt.unlink(missing_ok=True)
        words: list[str | Path] = []
        for number, (path, content) in enumerate(puts.items()):
            source = tmp_path / str(number)
            source.write_bytes(content)
            words += ["-map", source, f"/{path}"]
        options = ("-joliet", "on", "-overwrite", "on", "-boot_image", "any", "system_area=/dev/zero")
        run_client("xorriso", "-indev", base, "-outdev", rebuilt, *options, *words, "-commit")
        edited, _ = edit(base.read_bytes(), puts)
        assert extract(edited, tmp_path) == extract(rebuilt.read_bytes(), tmp_path)

    compare()
