"""The layout of base images of all families, and what a machine reads of an edited one."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import FormatError, IgnitionTooLarge, Unprocessable
from image_service.core.families.coreos.live_iso import LiveIso
from image_service.core.families.iso_layout import BootPart
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose as compose_coreos
from image_service.core.images.customization import Customization
from image_service.core.images.live import compose_live
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact
from image_service.server.boot_progress.stages import Stage, find_last_stage
from tests.acceptance.clients import run_client
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import base_file, base_image

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from image_service.core.images.boot_image import BootImage

pytestmark = pytest.mark.slow

UBUNTU = {
    **BOOT,
    ".disk/info": b"Ubuntu-Server 24.04 LTS",
    "casper/vmlinuz": b"kernel",
    "casper/initrd": b"initrd",
    "casper/a.squashfs": b"hsqs" * 5000,
    "casper/readme": b"text",
}
INSTALLER = {
    **BOOT,
    ".disk/info": b'Debian GNU/Linux 12.5.0 "Bookworm" - Official amd64 NETINST',
    "install.amd/vmlinuz": b"kernel",
    "install.amd/initrd.gz": b"initrd",
}
CONFIG = Customization(b"#cloud-config\nautoinstall:\n  version: 1\n", (), modified=None)
PRESEED = Customization(b"d-i a/b string c\n", (), modified=None)


def compose(data: bytes, customization: Customization = CONFIG) -> tuple[BootImage, bytes]:
    with base_file(data) as file:
        family, iso = read_base_layout(file)
        image = compose_live(BaseImage(file, iso, "0" * 64, "1", "x86_64", family=family), customization, "x")
        return image, image.extents.read_at(0, image.size)


def parts(files: Mapping[str, bytes], config: Customization = CONFIG) -> dict[BootPart, set[bytes]]:
    """Return what a machine reads of an edited ISO of these files, by part."""
    image, content = compose(make("LABEL", files), config)
    found: dict[BootPart, set[bytes]] = {}
    for area in image.areas:
        found.setdefault(area.part, set()).add(content[area.start : area.stop])
    return found


def test_machine_reads_kernel_initrd_root_file_system_and_config_of_its_family() -> None:
    found = parts(UBUNTU)
    assert found[BootPart.KERNEL] == {b"kernel"}
    assert found[BootPart.INITRD] == {b"initrd"}
    assert found[BootPart.ROOTFS] == {UBUNTU["casper/a.squashfs"]}
    assert found[BootPart.CONFIG] == {CONFIG.ignition}
    assert BOOT["boot/grub/grub.cfg"] in found[BootPart.BOOT_LOADER]


def test_config_of_an_installer_is_one_more_initrd() -> None:
    (config,) = parts(INSTALLER, PRESEED)[BootPart.CONFIG]
    assert config.startswith(b"\x1f\x8b")


@pytest.mark.parametrize(
    ("files", "customization", "stage"),
    [
        (UBUNTU, CONFIG, Stage.ROOTFS),
        (INSTALLER, PRESEED, Stage.IGNITION),
        (INSTALLER, attrs.evolve(CONFIG, ignition=b""), Stage.INITRD),
    ],
)
def test_boot_ends_with_what_its_family_reads_last(
    files: Mapping[str, bytes], customization: Customization, stage: Stage
) -> None:
    image, _ = compose(make("LABEL", files), customization)
    assert find_last_stage(image.areas) is stage


def test_boot_images_move_with_their_partition() -> None:
    option = ("-e", "boot/efi.img", "-no-emul-boot")
    data = make("LABEL", {**UBUNTU, "boot/efi.img": b"not a file system" * 1000}, *option)
    image, content = compose(data)
    firmware = [area for area in image.areas if area.part is BootPart.FIRMWARE]
    assert any(content[area.start : area.stop].startswith(b"not a file system") for area in firmware)


def test_layout_of_another_family_has_no_areas_and_boots_by_its_own_files() -> None:
    with base_file(make("LABEL", INSTALLER)) as file:
        family, iso = read_base_layout(file)
        assert family is not None
        assert not isinstance(iso, LiveIso)
        base = BaseImage(file, iso, "0" * 64, "12", "x86_64", family=family)
        kernel = compose_artifact(base, BootArtifact.KERNEL)
        assert kernel.extents.read_at(0, kernel.size) == b"kernel"
        with pytest.raises(Unprocessable, match=r"the base image 12 \(x86_64\) is of the family debian-inst"):
            full_canvas(base)


def test_coreos_is_not_looked_for_among_other_families() -> None:
    with base_file(build_live_iso()) as file:
        family, iso = read_base_layout(file)
    assert family is None
    assert isinstance(iso, LiveIso)


def test_medium_of_windows_is_named(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    run_client(
        "genisoimage", "-quiet", "-udf", "-V", "CCCOMA_X64", "-o", tmp_path / "udf.iso", tmp_path / "tree"
    )
    with (
        base_file((tmp_path / "udf.iso").read_bytes()) as file,
        pytest.raises(FormatError, match=r"UDF file system too, as media of Windows do.*second medium"),
    ):
        read_base_layout(file)


def test_image_of_a_disk_is_named() -> None:
    """As IncusOS has one beside its ISO."""
    disk = bytearray(4 << 20)
    disk[446:462] = struct.pack("<B3sB3sII", 0, b"", 0x83, b"", 2048, 4096)
    disk[510:512] = b"\x55\xaa"
    with (
        base_file(bytes(disk)) as file,
        pytest.raises(FormatError, match="an image of a disk with 1 partitions"),
    ):
        read_base_layout(file)
    with base_file(bytes(4 << 20)) as file, pytest.raises(FormatError, match="not an ISO 9660 image"):
        read_base_layout(file)


def test_config_that_does_not_fit_its_area_on_s390x_is_named() -> None:
    info = {"file": "images/cdboot.img", "offset": 0, "length": 4096}
    files = {
        **live_files(),
        "images/cdboot.img": bytes(8192),
        "coreos/igninfo.json": json.dumps(info).encode(),
        "generic.ins": b"",
    }
    config = b'{"ignition": {"version": "3.2.0"}, "x": "%s"}' % os.urandom(6000).hex().encode()
    with (
        base_image(build_live_iso(files), architecture="s390x") as base,
        pytest.raises(
            IgnitionTooLarge, match=r"URL that the config merges.*in the one image that s390x loads"
        ),
    ):
        compose_coreos(full_canvas(base), Customization(config, (), modified=None), "x")
