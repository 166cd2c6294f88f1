from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.core.families.live.test_families import make
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.formats.reading import fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

PATHS = {
    name: f"images/pxeboot/{file}"
    for name, file in (("kernel", "vmlinuz"), ("initrd", "initrd.img"), ("rootfs", "rootfs.img"))
}


@pytest.mark.parametrize("name", PATHS)
def test_file_is_extracted_unchanged(run: Run, base: Path, out: Path, name: str) -> None:
    assert run("extract", base, name, "-o", out).status == 0
    assert out.read_bytes() == live_files()[PATHS[name]]


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "iso", ["embed-areas-2020-09.iso", "embed-areas-2023-07.x86_64.iso", "embed-areas-2023-07.s390x.iso"]
)
def test_files_equal_those_of_coreos_installer(run: Run, base: Path, out: Path, iso: str) -> None:
    base.write_bytes(fixture(iso))
    run_client("coreos-installer", "iso", "extract", "pxe", "-o", out.parent, base)
    theirs = {path.name.removeprefix("base-"): path.read_bytes() for path in out.parent.iterdir()}
    ours = {PATHS[name].rpartition("/")[2]: run("extract", base, name, "-o", "-").output for name in PATHS}
    assert ours.items() <= theirs.items()  # older ones of s390x have a second kernel


def test_customized_base_has_the_same_files(run: Run, base: Path, out: Path) -> None:
    assert run("customize", base, "--karg-append", "a", "-o", out).status == 0
    assert run("extract", out, "rootfs", "-o", "-").output == live_files()["images/pxeboot/rootfs.img"]


def test_missing_file_is_named(run: Run, base: Path, out: Path) -> None:
    files = live_files()
    del files["images/pxeboot/rootfs.img"]
    base.write_bytes(build_live_iso(files))
    refused = run("extract", base, "rootfs", "-o", out)
    assert (refused.status, refused.errors) == (
        1,
        "image-service: the base image base.iso (unknown) has no rootfs.img\n",
    )
    assert not out.exists()


def test_file_of_another_family_is_extracted_or_refused_with_the_reason(run: Run, base: Path) -> None:
    files = {".treeinfo": b"[general]", "images/pxeboot/vmlinuz": b"kernel", "images/install.img": b"rootfs"}
    base.write_bytes(make("F", {**files, "images/pxeboot/initrd.img": b"initrd"}))
    for name in PATHS:
        assert run("extract", base, name, "-o", "-").output == name.encode()
    base.write_bytes(make("F", files))
    assert "lacks its files for a boot without the ISO" in run("extract", base, "kernel", "-o", "-").errors
    base.write_bytes(make("F", {"nix-store.squashfs": b"hsqs"}))
    assert "build netbootRamdisk" in run("extract", base, "kernel", "-o", "-").errors


def test_unknown_file_exits_with_2(run: Run, base: Path, out: Path) -> None:
    refused = run("extract", base, "miniso", "-o", out)
    assert refused.status == 2
    assert refused.errors.startswith("image-service extract: argument file: must be one of kernel, ")
