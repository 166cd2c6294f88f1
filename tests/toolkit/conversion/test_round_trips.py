"""Every pair of formats: the disk stays the same, byte for byte."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.disks.opening import open_image
from tests.toolkit.conversion.converting import (
    FORMS,
    MIB,
    SIZE,
    Form,
    compare_by_qemu,
    convert_file,
    sha256_of_disk,
    write_disk,
)
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

MAIN_FORMS = (
    Form("raw"),
    Form("qcow2"),
    Form("vmdk"),
    Form("vhd"),
    Form("vhd", "dynamic"),
    Form("vhdx"),
    Form("ova"),
)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_disk_survives_a_format_and_back(form: Form, tmp_path: Path) -> None:
    raw = write_disk(tmp_path / "disk.raw")
    made = convert_file(raw, tmp_path / "image", form)
    digest = hashlib.sha256(raw.read_bytes()).hexdigest()
    assert made.size == (tmp_path / "image").stat().st_size
    assert made.input_sha256 == digest
    assert made.output_sha256 == hashlib.sha256((tmp_path / "image").read_bytes()).hexdigest()
    assert sha256_of_disk(tmp_path / "image", form.name) == digest
    convert_file(tmp_path / "image", tmp_path / "back.raw", Form("raw"), declared=form.name)
    assert (tmp_path / "back.raw").stat().st_size == SIZE
    assert hashlib.sha256((tmp_path / "back.raw").read_bytes()).hexdigest() == digest


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "source", [Form("qcow2"), *(soaked(form) for form in MAIN_FORMS if form != Form("qcow2"))], ids=str
)
def test_every_pair_of_formats_keeps_the_disk(source: Form, tmp_path: Path) -> None:
    raw = write_disk(tmp_path / "disk.raw")
    digest = hashlib.sha256(raw.read_bytes()).hexdigest()
    convert_file(raw, tmp_path / "source", source, digests=False)
    for form in MAIN_FORMS:
        out = tmp_path / f"out-{form}"
        convert_file(tmp_path / "source", out, form, digests=False)
        assert sha256_of_disk(out, form.name) == digest
        compare_by_qemu(raw, out, form)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "size",
    [512, soaked(1536), soaked(MIB - 512), soaked(16 * MIB), 16 * MIB + 512, soaked(63 * 255 * 512)],
)
def test_sizes_stay_exact(size: int, tmp_path: Path) -> None:
    raw = write_disk(tmp_path / "disk.raw", size, {0: 512})
    for form in FORMS:
        out = tmp_path / f"out-{form}"
        convert_file(raw, out, form, digests=False)
        compare_by_qemu(raw, out, form)


def test_fixed_vhd_is_the_disk_and_its_footer(tmp_path: Path) -> None:
    raw = write_disk(tmp_path / "disk.raw")
    made = convert_file(raw, tmp_path / "disk.vhd", Form("vhd"))
    content = (tmp_path / "disk.vhd").read_bytes()
    assert made.size == SIZE + 512
    assert content[:SIZE] == raw.read_bytes()
    footer = content[SIZE:]
    assert footer[:8] == b"conectix"
    assert int.from_bytes(footer[40:48], "big") == int.from_bytes(footer[48:56], "big") == SIZE
    assert int.from_bytes(footer[60:64], "big") == 2


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_holes_stay_holes(form: Form, tmp_path: Path) -> None:
    raw = write_disk(tmp_path / "disk.raw", 1 << 34, {5 * MIB: 3 * MIB, (1 << 34) - MIB: MIB})
    convert_file(raw, tmp_path / "image", form, digests=False)
    assert (tmp_path / "image").stat().st_blocks * 512 <= 12 * MIB
    convert_file(tmp_path / "image", tmp_path / "back.raw", Form("raw"), digests=False)
    assert (tmp_path / "back.raw").stat().st_size == 1 << 34
    assert (tmp_path / "back.raw").stat().st_blocks * 512 <= 5 * MIB


@pytest.mark.parametrize(
    "form",
    [
        Form("qcow2"),
        Form("qcow2", compress=True),
        Form("vmdk"),
        Form("vmdk", "monolithicSparse"),
        Form("ova"),
    ],
    ids=str,
)
def test_equal_disks_give_equal_files(form: Form, tmp_path: Path) -> None:
    write_disk(tmp_path / "disk.raw")
    digests = set()
    for attempt in "ab":
        (tmp_path / attempt).mkdir()
        made = convert_file(tmp_path / "disk.raw", tmp_path / attempt / "same.image", form)
        digests.add(made.output_sha256)
    assert len(digests) == 1


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_need_is_at_least_what_is_written_and_little_more(form: Form, tmp_path: Path) -> None:
    pieces = dict.fromkeys(range(0, 64 * MIB, 4 * MIB), 4096) | {100 * MIB: 20 * MIB}
    raw = write_disk(tmp_path / "disk.raw", 1 << 30, pieces)
    with open_image(raw) as image:
        needed = form.target.needed_bytes(image.disk.virtual_size, image.stored_extents)
    convert_file(raw, tmp_path / "image", form, digests=False)
    written = (tmp_path / "image").stat().st_blocks * 512
    assert written <= needed <= written + 8 * MIB
