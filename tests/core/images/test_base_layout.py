"""The layout of base images of all families, and what a machine reads of an edited one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import Unprocessable
from image_service.core.families.coreos.live_iso import LiveIso
from image_service.core.families.iso_layout import BootPart
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.canvas import full_canvas
from image_service.core.images.customization import Customization
from image_service.core.images.live import compose_live
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact
from image_service.server.boot_progress.stages import Stage, find_last_stage
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.core.images.building import base_file

if TYPE_CHECKING:
    from collections.abc import Mapping

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
