"""Full ISOs with Rock Ridge names, each of which boots as those of its architecture do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from image_service.common.concurrency.interruption import Interruption
from image_service.server.catalog.lifecycle.opening import open_base_image
from image_service.settings.os_images import OsImage
from tests.acceptance.clients import needs_client
from tests.acceptance.media import master
from tests.core.formats.filesystems.iso_builder import VOLUME_ID, live_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.core.images.base_image import BaseImage

VERSION = "9.6.20250523-0"
_ESP_BYTES = 48 * 2048
ROOTFS = b"rootfs data\n" * 50_000
_ISOLINUX = "/usr/lib/ISOLINUX"
_BIOS = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
_UEFI = "-eltorito-alt-boot -e images/efiboot.img -no-emul-boot"
_CHRP = "-hfsplus -apm-block-size 2048 -hfs-bless-by p /ppc -sysid PPC --protective-msdos-label"


def x86_64(path: Path, rootfs: bytes = ROOTFS) -> None:
    """Write one that boots under BIOS and UEFI, from CD and USB."""
    isolinux = Path(needs_client(_ISOLINUX))
    loader = (isolinux / "isolinux.bin").read_bytes()
    files = {
        **_files(rootfs),
        "isolinux/isolinux.bin": loader,
        "images/efiboot.img": _noise("efi", _ESP_BYTES),
    }
    options = [*_BIOS.split(), "-isohybrid-mbr", str(isolinux / "isohdpfx.bin"), *_UEFI.split()]
    master(path, files, VOLUME_ID, *options, "-isohybrid-gpt-basdat")


def aarch64(path: Path, rootfs: bytes = ROOTFS) -> None:
    """Write one that boots under UEFI from CD."""
    files = {**_without(_files(rootfs), "isolinux"), "images/efiboot.img": _noise("efi", _ESP_BYTES)}
    master(path, files, VOLUME_ID, *_UEFI.split())


def ppc64le(path: Path, rootfs: bytes = ROOTFS) -> None:
    """Write one as grub2-mkrescue does."""
    files = {
        name.replace("EFI/redhat", "boot/grub"): content.replace(b"EFI/redhat", b"boot/grub")
        for name, content in _without(_files(rootfs), "isolinux").items()
    }
    master(path, {**files, "ppc/bootinfo.txt": b"<chrp-boot></chrp-boot>\n"}, VOLUME_ID, *_CHRP.split())


FULL_ISOS: Mapping[str, Callable[[Path], None]] = {"x86_64": x86_64, "aarch64": aarch64, "ppc64le": ppc64le}


def open_iso(path: Path, architecture: str = "x86_64", openshift: str = "4.17") -> BaseImage:
    """Open an ISO as the catalog does; the descriptor belongs to the caller."""
    entry = OsImage(VERSION, architecture, "full-iso", (openshift,), path.as_uri())
    with TemporaryDirectory() as sidecars:
        return open_base_image(entry, path, Path(sidecars) / "rhcos-sidecar", Interruption())


def _files(rootfs: bytes) -> dict[str, bytes]:
    names = ("initrd.img", "vmlinuz")
    large = {f"images/pxeboot/{name}": _noise(name, 300_000) for name in names}
    return {**live_files(rootfs=rootfs), **large}


def _without(files: Mapping[str, bytes], boot_loader: str) -> dict[str, bytes]:
    """The files of an image that has one boot configuration less."""
    info = json.loads(files["coreos/kargs.json"])
    info["files"] = [file for file in info["files"] if not file["path"].startswith(boot_loader)]
    kept = {name: content for name, content in files.items() if not name.startswith(boot_loader)}
    return {**kept, "coreos/kargs.json": json.dumps(info).encode()}


def _noise(seed: str, length: int) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(length)
