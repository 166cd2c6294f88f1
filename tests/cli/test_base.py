from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.core.formats.filesystems.iso_builder import build_other_iso
from tests.server.catalog import full_isos

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run

MINIMAL = ("--minimal", "--rootfs-url", "http://192.0.2.1/rootfs.img")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(os.devnull)])
def test_base_that_is_no_regular_file_is_refused_without_blocking(
    run: Run, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "base.iso"
    make(path)
    refused = run("inspect", path)
    assert (refused.status, refused.errors) == (1, f"image-service: {path} is not a regular file\n")


def test_missing_base_is_named(run: Run, tmp_path: Path) -> None:
    refused = run("inspect", tmp_path / "base.iso")
    assert refused.status == 1
    assert refused.errors == f"image-service: {tmp_path}/base.iso: No such file or directory\n"


def test_base_that_is_not_an_iso_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "base.iso"
    path.write_bytes(b"hello")
    refused = run("inspect", path)
    assert refused.status == 1
    assert refused.errors.startswith(f"image-service: {path}: not an ISO 9660 image")
    assert refused.errors.endswith("; image-toolkit inspect describes disk images\n")


def test_no_descriptor_leaks(run: Run, base: Path, out: Path) -> None:
    before = descriptors()
    assert run("customize", base, *MINIMAL, "-o", out).status == 0
    assert run("extract", base, "kernel", "-o", out).status == 1
    base.write_bytes(build_other_iso())
    assert run("inspect", base).status == 0
    assert run("extract", base, "kernel", "-o", out).status == 1
    base.write_bytes(b"hello")
    assert run("inspect", base).status == 1
    assert descriptors() == before


@pytest.mark.acceptance
def test_no_descriptor_of_a_derivation_leaks(run: Run, base: Path, out: Path) -> None:
    full_isos.x86_64(base)
    before = descriptors()
    assert run("customize", base, *MINIMAL, "-o", out).status == 0
    assert descriptors() == before


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}
