"""Checks of the image: which firmware can boot it, and from which kind of drive."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import SAMPLE_VOLUME_ID
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.efi_program import EfiProgram, read_efi_program
from image_service.core.formats.filesystems.el_torito import BIOS, EFI, read_boot_images
from image_service.core.formats.filesystems.fat import FatNode, read_fat
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import Span, SpanReader
from image_service.tools.doctor.outcomes import failed, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from image_service.core.formats.disk.partitions import Partition
    from image_service.core.formats.filesystems.el_torito import BootImageEntry
    from image_service.core.formats.iso9660.volume import Iso9660
    from image_service.core.formats.reading import ReadAt
    from image_service.tools.doctor.outcomes import CheckOutcome

BOOT_CHECKS = ("image", "boot-records", "secure-boot")

_SECTOR = 512
_BOOT_CODE_BYTES = 440
_BOOT_SIGNATURE = b"\x55\xaa"
_LOADERS = {"EFI/BOOT/BOOTX64.EFI": "x86_64", "EFI/BOOT/BOOTAA64.EFI": "aarch64"}
_OTHER_CONTENT = {b"#!ipxe": "a script for iPXE", b"MZ": "a program for UEFI or a kernel"}
_WITHOUT_BIOS_AND_UEFI = ("ppc64le", "s390x")


@attrs.frozen
class BootWays:
    """The ways in which firmware can boot an image.

    Args:
        bios_cd: by BIOS, as a CD.
        uefi_cd: by UEFI, as a CD.
        bios_usb: by BIOS, as a disk.
        uefi_usb: by UEFI, as a disk.
        loaders: programs for UEFI, by architecture.
        cd_fault: why the boot catalog is damaged; None: it is not.
        usb_fault: how the partition table is damaged, or a partition cut; None: neither is so, or a whole
            partition has a loader.
    """

    bios_cd: bool
    uefi_cd: bool
    bios_usb: bool
    uefi_usb: bool
    loaders: dict[str, EfiProgram]
    cd_fault: str | None
    usb_fault: str | None

    def __str__(self) -> str:
        ways = {
            "BIOS from CD": self.bios_cd,
            "UEFI from CD": self.uefi_cd,
            "BIOS from USB": self.bios_usb,
            "UEFI from USB": self.uefi_usb,
        }
        return ", ".join(way for way, is_possible in ways.items() if is_possible)


def check_image(read_at: ReadAt, size: int) -> Generator[CheckOutcome, None, Iso9660 | None]:
    """Yield the outcome of the check ``image``; return the ISO, None if it is not one."""
    name = "image"
    try:
        iso = read_iso9660(read_at, size)
    except FormatError as error:
        beginning = read_at(0, _SECTOR)
        kinds = [kind for magic, kind in _OTHER_CONTENT.items() if beginning.startswith(magic)]
        if kinds:
            yield passed(name, f"{kinds[0]}, not an ISO")
        else:
            yield failed(name, error.detail, "use the URL of an ISO, and compare its digest")
        return None
    created = f", made {iso.created:%Y-%m-%d}" if iso.created else ""
    yield passed(name, f"ISO 9660 volume {iso.volume_id}{created}")
    return iso


def check_boot_records(ways: BootWays, architecture: str | None, volume_id: str) -> Iterator[CheckOutcome]:
    """Yield the outcomes of the other `BOOT_CHECKS`."""
    if architecture in _WITHOUT_BIOS_AND_UEFI:
        reason = f"{architecture} has neither BIOS nor UEFI"
        yield from (skipped(name, reason) for name in BOOT_CHECKS[1:])
        return
    if volume_id == SAMPLE_VOLUME_ID:
        detail = "this is the sample of image-service, which has no system to boot"
        yield failed("boot-records", detail, "use an image of a base image of your own: OS_IMAGES")
    else:
        yield _judge_ways(ways, architecture)
    yield _judge_loaders(ways)


def _judge_ways(ways: BootWays, architecture: str | None) -> CheckOutcome:
    name, text = "boot-records", str(ways)
    remedy = "use an image that was made to be booted"
    if ways.cd_fault:
        return failed(name, ways.cd_fault, remedy)
    if not text:
        return failed(name, "no boot record for CD or USB, BIOS or UEFI", remedy)
    if ways.usb_fault:
        return warned(name, f"{text}; {ways.usb_fault}", "mount it as a CD, not as a disk")
    if not ways.uefi_cd:
        return warned(name, f"{text}; not UEFI from CD", "set the machine to BIOS, or use another image")
    if not ways.bios_cd and architecture != "aarch64":
        return warned(name, f"{text}; not BIOS from CD", "set the machine to UEFI, or use another image")
    return passed(name, text)


def _judge_loaders(ways: BootWays) -> CheckOutcome:
    name = "secure-boot"
    if not ways.loaders:
        return skipped(name, "no EFI/BOOT/BOOTX64.EFI or BOOTAA64.EFI was found")
    unsigned = [architecture for architecture, loader in ways.loaders.items() if not loader.is_signed]
    if unsigned:
        detail = f"the loader for {', '.join(unsigned)} has no signature"
        return warned(name, detail, "disable Secure Boot on the machine, or use a signed image")
    others = [each for each, loader in ways.loaders.items() if not _is_shim(loader)]
    if others:
        detail = f"the loader for {', '.join(others)} is signed, but not named shim"
        return skipped(name, f"{detail}: it is not known whether firmware trusts it")
    return passed(name, f"a signed shim for {', '.join(ways.loaders)}")


def _is_shim(loader: EfiProgram) -> bool:
    return any(component.startswith("shim") for component in loader.components)


def find_boot_ways(read_at: ReadAt, size: int) -> BootWays:
    """Return how firmware can boot an image; raise TransferFailed if it cannot be read."""
    cd_fault, usb_fault = None, None
    images: tuple[BootImageEntry, ...] = ()
    partitions: tuple[Partition, ...] = ()
    try:
        images = tuple(image for image in read_boot_images(read_at, size) if image.bootable)
    except FormatError as error:
        cd_fault = error.detail
    try:
        table = read_partitions(read_at, size)
        if table:
            lost = {each.number for each in table.lost}
            usb_fault = "; ".join(table.losses) or None
            partitions = tuple(each for each in table.partitions if each.number not in lost)
    except FormatError as error:
        usb_fault = error.detail
    platforms = {image.platform for image in images}
    efi_images = [Span("EFI boot image", each.offset, each.length) for each in images if each.platform == EFI]
    of_cd = _find_loaders(read_at, efi_images)
    of_usb = _find_loaders(read_at, [Span(str(each), each.offset, each.length) for each in partitions])
    first = read_at(0, _SECTOR)
    return BootWays(
        bios_cd=BIOS in platforms,
        uefi_cd=EFI in platforms,
        bios_usb=first.endswith(_BOOT_SIGNATURE) and any(first[:_BOOT_CODE_BYTES]),
        uefi_usb=bool(of_usb),
        loaders=of_cd | of_usb,
        cd_fault=cd_fault,
        usb_fault=None if of_usb else usb_fault,
    )


def _find_loaders(read_at: ReadAt, spans: Iterable[Span]) -> dict[str, EfiProgram]:
    """Return the loaders in FAT file systems, by architecture; none of damaged or other ones."""
    found: dict[str, EfiProgram] = {}
    for span in spans:
        read_span = SpanReader(read_at, span)
        for path, architecture in _LOADERS.items():
            with suppress(FormatError):
                loader = find_node(read_fat(read_span, span.length).root, path)
                if isinstance(loader, FatNode):
                    found[architecture] = read_efi_program(_node_reader(loader), loader.size)
    return found


def _node_reader(node: FatNode) -> ReadAt:
    return lambda offset, length: node.read_part(offset, max(0, min(length, node.size - offset)))
