"""The sample ISO equals a new build, and coreos-installer accepts it; the toolkit accepts the sample disk."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING

import pytest

from image_service.core.families.coreos.family import SAMPLE_VOLUME_ID
from image_service.server.standalone.sample import unpack_sample, unpack_sample_disk
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.make_sample import PACKED, PACKED_DISK, make_sample
from tests.toolkit.coreos_disk import read_boot_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


def test_packaged_sample_equals_a_new_build() -> None:
    assert make_sample() == lzma.decompress(PACKED.read_bytes())


def test_packaged_sample_is_smaller_than_4_kib() -> None:
    assert PACKED.stat().st_size < 4096


def test_packaged_disk_is_smaller_than_32_kib() -> None:
    assert PACKED_DISK.stat().st_size < 32 * 1024


def test_toolkit_customizes_and_converts_the_sample_disk(tmp_path: Path) -> None:
    for program in ("debugfs", "qemu-img"):
        needs_client(program)
    disk, config = tmp_path / "disk.raw", tmp_path / "config.ign"
    disk.write_bytes(lzma.decompress(unpack_sample_disk(tmp_path).read_bytes()))
    config.write_bytes(b'{"ignition": {"version": "3.3.0"}}\n')
    options = ("--ignition", config, "--platform", "vmware")
    run_client("image-toolkit", "customize", disk, tmp_path / "out.raw", *options)
    assert read_boot_file(tmp_path / "out.raw", "ignition/config.ign") == config.read_bytes()
    run_client("image-toolkit", "convert", tmp_path / "out.raw", tmp_path / "out.ova", "--format", "ova")


def test_coreos_installer_finds_the_sample_pristine(tmp_path: Path) -> None:
    sample = unpack_sample(tmp_path)
    areas = json.loads(run_client("coreos-installer", "dev", "show", "iso", "--ignition", sample))
    assert areas["length"] == 256 * 1024
    shown = run_client("coreos-installer", "iso", "kargs", "show", sample)
    assert shown.split()[0] == f"coreos.liveiso={SAMPLE_VOLUME_ID}".encode()


def test_coreos_installer_customizes_and_resets_the_sample(tmp_path: Path) -> None:
    pristine = unpack_sample(tmp_path).read_bytes()
    config, customized = tmp_path / "config.ign", tmp_path / "customized.iso"
    config.write_bytes(b'{"ignition": {"version": "3.3.0"}}\n')
    embed = ("iso", "ignition", "embed", "-i", config, "-o", customized)
    run_client("coreos-installer", *embed, unpack_sample(tmp_path))
    assert run_client("coreos-installer", "iso", "ignition", "show", customized) == config.read_bytes()
    assert run_client("coreos-installer", "iso", "reset", "-o", "-", customized) == pristine
