"""Verification, formats and derivation of a partly absent base image: none reads a hole as zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.server.catalog.derived.derivation import derive_minimal_iso
from image_service.server.catalog.lifecycle.opening import examine_file
from image_service.settings.os_images import OsImage
from tests.common.files.partly_absent import PartlyAbsent
from tests.server.catalog.full_isos import VERSION, open_iso, x86_64

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage


@pytest.fixture
def resident(tmp_path: Path) -> Iterator[BaseImage]:
    x86_64(tmp_path / "rhcos-full.iso")
    base = open_iso(tmp_path / "rhcos-full.iso")
    yield base
    base.file.close()


@pytest.fixture
def absent(resident: BaseImage, tmp_path: Path) -> Iterator[PartlyAbsent]:
    """The same file, of which nothing is here."""
    partly = PartlyAbsent(tmp_path / "rhcos-remote.iso", resident.file.read_at(0, resident.file.size))
    yield partly
    partly.file.close()


def test_verification_reads_no_holes(resident: BaseImage, absent: PartlyAbsent, tmp_path: Path) -> None:
    entry = OsImage(VERSION, "x86_64", "full-iso", ("4.17",), "", sha256=resident.sha256)
    base = examine_file(entry, absent.file, tmp_path / "rhcos-sidecar.json", Interruption())
    assert attrs.evolve(base, file=resident.file) == resident
    again = examine_file(entry, absent.file, tmp_path / "rhcos-sidecar.json", Interruption())
    assert again.sha256 == resident.sha256


def test_parsing_fetches_a_part_of_the_file(resident: BaseImage, absent: PartlyAbsent) -> None:
    assert read_live_iso(absent.file.read_at, absent.file.size) == resident.iso
    assert len(set(absent.fetched)) < absent.file.size // 65_536


def test_derivation_reads_no_holes(resident: BaseImage, absent: PartlyAbsent, tmp_path: Path) -> None:
    remote = attrs.evolve(resident, file=absent.file)
    for base, name in ((resident, "rhcos-1.iso"), (remote, "rhcos-2.iso")):
        derive_minimal_iso(base, None, tmp_path / name, tmp_path, Interruption())
    assert (tmp_path / "rhcos-1.iso").read_bytes() == (tmp_path / "rhcos-2.iso").read_bytes()
