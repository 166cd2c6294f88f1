"""Boots of other families than CoreOS without a medium: kernel arguments, initrds and root file systems."""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import NotFound, Unprocessable
from image_service.core.families.live.families import FAMILIES
from image_service.core.formats.initrd import read_members
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.customization import Customization
from image_service.core.images.ipxe import netboot_arguments
from image_service.core.images.layouts import newest_layout
from image_service.core.images.live import compose_live, compose_live_initrd
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import BootArtifact
from tests.acceptance.clients import needs_client
from tests.core.families.live.test_config_checks import ANSWERS
from tests.core.families.live.test_families import BOOT, make
from tests.core.images.building import base_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from image_service.core.images.boot_image import BootImage

pytestmark = pytest.mark.slow

ISO, ROOTFS = "http://i.test/full.iso", "http://i.test/rootfs.img"


def _apkovl() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("etc/hostname"), io.BytesIO())
    return file.getvalue()


@attrs.frozen
class Case:
    """A family.

    Args:
        files: of its ISO; those named kernel, initrd and rootfs in their contents are served.
        arguments: of its kernel without a config.
        more: of its kernel with the config.
        path: of the config in the initrd; empty: it is on the ISO that the initrd fetches or has.
    """

    name: str
    files: Mapping[str, bytes]
    config: bytes
    arguments: str
    more: str
    path: str = ""
    label: str = "LABEL"


CASES = [
    Case(
        "ubuntu",
        {"casper/vmlinuz": b"kernel", "casper/initrd": b"initrd", ".disk/info": b"Ubuntu 24.04"},
        b"autoinstall: {version: 1}\n",
        f"ip=dhcp netboot=url url={ISO} cloud-config-url=/dev/null",
        " autoinstall",
    ),
    Case(
        "debian-live",
        {
            "live/filesystem.squashfs": b"rootfs",
            "live/vmlinuz-6.1.0-9-amd64": b"kernel",
            "live/initrd.img-6.1.0-9-amd64": b"initrd",
        },
        b"#cloud-config\n",
        f"boot=live components fetch={ISO}",
        " ds=nocloud;s=/run/live/medium/nocloud/",
    ),
    Case(
        "debian-installer",
        {
            ".disk/info": b"Debian GNU/Linux 12",
            "install.amd/vmlinuz": b"kernel",
            "install.amd/initrd.gz": b"initrd",
        },
        b"d-i a/b string c\n",
        "auto=true priority=critical",
        "",
        "preseed.cfg",
    ),
    Case(
        "anaconda",
        {
            ".treeinfo": b"[general]",
            "images/pxeboot/vmlinuz": b"kernel",
            "images/pxeboot/initrd.img": b"initrd",
            "images/install.img": b"rootfs",
        },
        b"text\n",
        f"ip=dhcp root=live:{ROOTFS}",
        " inst.ks=file:/ks.cfg",
        "ks.cfg",
    ),
    Case(
        "suse",
        {"boot/x86_64/loader/linux": b"kernel", "boot/x86_64/loader/initrd": b"initrd", "media.1/x": b""},
        b"<profile/>",
        "ifcfg=*=dhcp",
        " autoyast=file:///autoinst.xml",
        "autoinst.xml",
    ),
    Case(
        "agama",
        {
            "boot/x86_64/loader/linux": b"kernel",
            "boot/x86_64/loader/initrd": b"initrd",
            "LiveOS/squashfs.img": b"rootfs",
        },
        b"#!/bin/sh\n",
        f"ip=dhcp root=live:{ISO}",
        " inst.auto=file:///run/initramfs/live/agama.sh",
        label="Install-SLES-16.0",
    ),
    Case(
        "alpine",
        {
            ".alpine-release": b"3.20",
            "boot/vmlinuz-lts": b"kernel",
            "boot/initramfs-lts": b"initrd",
            "boot/modloop-lts": b"rootfs",
        },
        _apkovl(),
        f"ip=dhcp modloop={ROOTFS}?/modloop-lts",
        " apkovl=/localhost.apkovl.tar.gz",
        "localhost.apkovl.tar.gz",
    ),
    Case(
        "flatcar",
        {"flatcar/vmlinuz-a": b"kernel", "flatcar/cpio.gz": b"initrd"},
        b'{"ignition": {"version": "3.4.0"}}',
        "flatcar.first_boot=1",
        "",
        "usr/share/oem/config.ign",
    ),
    Case(
        "proxmox",
        {"boot/linux26": b"kernel", "boot/initrd.img": b"initrd", ".pve-cd-id.txt": b"1"},
        ANSWERS.encode(),
        "ro ramdisk_size=16777216 rw quiet splash=silent",
        " proxmox-start-auto-installer",
    ),
    Case(
        "harvester",
        {
            "boot/kernel": b"kernel",
            "boot/initrd": b"initrd",
            "rootfs.squashfs": b"rootfs",
            "harvester-release.yaml": b"",
        },
        b"",
        f"ip=dhcp net.ifnames=1 rd.cos.disable rd.noverifyssl root=live:{ROOTFS}",
        "",
    ),
    Case(
        "kairos",
        {"boot/kernel": b"kernel", "boot/initrd": b"initrd", "rootfs.squashfs": b"rootfs"},
        b"#cloud-config\n",
        "ip=dhcp rd.neednet=1 rd.live.overlay.overlayfs rd.cos.disable"
        f" root=live:{ROOTFS} netboot install-mode",
        "",
        label="COS_LIVE",
    ),
    Case(
        "talos",
        {"boot/vmlinuz": b"kernel", "boot/initramfs.xz": b"initrd"},
        b"version: v1alpha1\n",
        "talos.platform=metal talos.config=metal-iso",
        "",
        label="TALOS",
    ),
]
REASONS = {
    "nixos": "build netbootRamdisk",
    "esxi": "mboot.efi",
    "coreos-generic": "give its ISO as a virtual CD",
    "combustion": "take the files for PXE",
    "unified-kernel": "boot its ISO by UEFI's HTTP",
    "generic": "has no known files for that",
}
BY_NAME = {case.name: case for case in CASES}


def opened(case: Case) -> Iterator[BaseImage]:
    with base_file(make(case.label, {**BOOT, **case.files})) as file:
        family, iso = read_base_layout(file)
        assert family is not None
        assert family.name == case.name
        yield BaseImage(file, iso, "0" * 64, "1", "x86_64", family=family)


@pytest.fixture
def base(case: Case) -> Iterator[BaseImage]:
    yield from opened(case)


def content(image: BootImage) -> bytes:
    return image.extents.read_at(0, image.size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script_and_files_are_what_the_family_boots(case: Case, base: BaseImage) -> None:
    def arguments(config: bytes) -> str:
        return netboot_arguments(base, ROOTFS, [], iso_url=ISO, config=config)

    assert arguments(b"") == case.arguments
    assert arguments(case.config) == case.arguments + (case.more if case.config else "")
    assert content(compose_artifact(base, BootArtifact.KERNEL)) == b"kernel"
    customization = Customization(case.config, (), None)
    initrd = content(compose_live_initrd(base, customization, "x", newest_layout()))
    assert initrd.startswith(b"initrd")
    if case.path:
        assert read_members(initrd[8:])[case.path].data == case.config
    if ROOTFS in case.arguments:
        assert content(compose_artifact(base, BootArtifact.ROOTFS)) == b"rootfs"
    else:
        with pytest.raises(NotFound):
            compose_artifact(base, BootArtifact.ROOTFS)


def test_families_that_do_not_boot_without_their_iso_say_why() -> None:
    reasons = {family.name: family.netboot for family in FAMILIES if isinstance(family.netboot, str)}
    assert reasons.keys() == REASONS.keys()
    assert reasons.keys() | BY_NAME.keys() == {family.name for family in FAMILIES}
    (anaconda,) = opened(BY_NAME["anaconda"])  # the file is closed, which is not read
    for family in FAMILIES:
        if family.name in REASONS:
            base = attrs.evolve(anaconda, family=family)
            with pytest.raises(NotFound, match=REASONS[family.name]):
                netboot_arguments(base, ROOTFS, [])
            with pytest.raises(NotFound, match=f"family {family.name}, which"):
                compose_live_initrd(base, Customization(b"", (), None), "x", newest_layout())


@pytest.mark.parametrize("absent", ["images/install.img", "images/pxeboot/initrd.img"])
def test_iso_that_lacks_a_file_is_refused(absent: str) -> None:
    case = BY_NAME["anaconda"]
    files = {path: data for path, data in case.files.items() if path != absent}
    (base,) = opened(attrs.evolve(case, files=files))
    with pytest.raises(NotFound, match="lacks its files"):
        netboot_arguments(base, ROOTFS, [])


@pytest.mark.parametrize("case", [BY_NAME["proxmox"]], ids=["proxmox"])
def test_initrd_of_proxmox_has_the_iso_with_the_answers_as_cpio_reads_it(
    base: BaseImage, tmp_path: Path
) -> None:
    customization = Customization(ANSWERS.encode(), (), None)
    image = compose_live_initrd(base, customization, "x", newest_layout())
    archive = content(image)[len(b"initrd\0\0") :]
    subprocess.run(
        [needs_client("cpio"), "-i", "--quiet"], input=archive, cwd=tmp_path, check=True, capture_output=True
    )
    iso = compose_live(base, customization, "x")
    assert (tmp_path / "proxmox.iso").read_bytes() == content(iso)
    assert b"filesystem = 'ext4'" in content(iso)
    other = attrs.evolve(customization, ignition=ANSWERS.replace("de", "fr").encode())
    assert compose_live_initrd(base, other, "x", newest_layout()).etag != image.etag


@pytest.mark.parametrize("case", [BY_NAME["proxmox"]], ids=["proxmox"])
def test_iso_that_is_too_large_for_an_initrd_is_refused(
    base: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.core.images.live.MAX_MEMBER", base.file.size - 1)
    with pytest.raises(Unprocessable, match="a file of an initrd at most"):
        compose_live_initrd(base, Customization(b"", (), None), "x", newest_layout())
