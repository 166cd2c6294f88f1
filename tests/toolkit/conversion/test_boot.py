"""A converted disk boots: in every format, read by qemu itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.toolkit.conversion.converting import Form, convert_file
from tests.toolkit.coreos_disk import boot_disk, build_disk
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

DRIVERS = {"vhd": "vpc", "ova": "vmdk"}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_disk(tmp_path_factory.mktemp("coreos"), boots=True)


@pytest.mark.soak
@pytest.mark.acceptance
@pytest.mark.parametrize(
    "form",
    [
        soaked(Form("raw")),
        soaked(Form("qcow2")),
        soaked(Form("qcow2", compress=True)),
        soaked(Form("vmdk")),
        soaked(Form("vhd")),
        soaked(Form("vhd", "dynamic")),
        soaked(Form("vhdx")),
        Form("ova"),
    ],
    ids=str,
)
def test_converted_disk_boots(form: Form, disk: Path, tmp_path: Path) -> None:
    image = tmp_path / "vm.image"
    convert_file(disk, image, form, digests=False)
    if form.name == "ova":
        run_client("tar", "-C", tmp_path, "-xf", image, "vm-disk1.vmdk")
        image = tmp_path / "vm-disk1.vmdk"
    report = boot_disk(image, tmp_path, image_format=DRIVERS.get(form.name, form.name))
    assert "ignition.platform.id=metal" in report.arguments
