"""Checks of the image and of the boot records on its disk."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.core.formats.disk.partition_types import type_name
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.kernel import HEAD_BYTES, detect_kernel_architecture
from image_service.toolkit.validation.root_files import read_parts
from image_service.toolkit.validation.verdicts import CannotTell, Finding, fail, ok

if TYPE_CHECKING:
    from image_service.toolkit.validation.facts import DiskFacts
    from image_service.toolkit.validation.platforms import Platform

_MBR_LIMIT = 2 << 40  # 32-bit numbers of 512-byte sectors
_KERNEL = "the kernel"
_LOADERS = {"BOOTX64.EFI": "x86_64", "BOOTAA64.EFI": "aarch64"}


def check_format(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the platform takes the image's format."""
    disk = facts.image.disk
    name = " ".join(filter(None, (disk.subformat, disk.format.value)))
    subformats = platform.formats.get(disk.format)
    if subformats is not None and (not subformats or disk.subformat in subformats):
        return ok(f"{platform.title} takes {name}")
    taken = ", ".join(
        " ".join(filter(None, (" or ".join(sorted(kinds)), kind.value)))
        for kind, kinds in platform.formats.items()
    )
    return fail(f"the image is {name}; {platform.title} takes {taken}")


def check_disk_size(facts: DiskFacts, platform: Platform) -> Finding:
    """Check the size of the disk: its multiple, and the limits of platform and partition table."""
    size, table = facts.image.disk.virtual_size, facts.content.table
    multiple = max(platform.size_multiple, table.sector_size if table else 0)
    if size % multiple:
        return fail(f"the disk has {size} bytes, which is not a multiple of {multiple}")
    if size > platform.max_size:
        return fail(f"the disk has {size} bytes; {platform.title} takes at most {platform.max_size}")
    if table and table.scheme == "mbr" and size > _MBR_LIMIT:
        return fail(f"the disk has {size} bytes and an MBR, which reaches only {_MBR_LIMIT} of them")
    return ok(f"{size} bytes are a multiple of {multiple} and within the limits")


def check_partition_table(facts: DiskFacts, _platform: Platform) -> Finding:
    """Check that the disk has a whole partition table: both copies of a GPT, and no overlap."""
    content = facts.content
    if content.table_damage:
        return fail(f"the partition table is damaged: {content.table_damage}")
    if content.table is None:
        return fail("the disk has no partition table")
    if content.table.faults:
        return fail("; ".join(content.table.faults))
    if not content.table.partitions:
        return fail(f"the {content.table.scheme.upper()} has no partitions")
    kinds = ", ".join(type_name(each.type) for each in content.table.partitions)
    return ok(f"{content.table.scheme.upper()} with {kinds}")


def check_sector_size(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the platform has disks with the sectors that the GPT counts in."""
    table, stated = facts.content.table, facts.image.disk.sector_bytes
    if stated not in platform.sector_sizes:
        return fail(f"the image states sectors of {stated} bytes; {platform.title} has others")
    if table is None:
        raise CannotTell("the disk has no partition table, which would tell the size of sectors")
    if table.sector_size in platform.sector_sizes:
        return ok(f"the partition table counts in sectors of {table.sector_size} bytes")
    return fail(
        f"the partition table counts in sectors of {table.sector_size} bytes; disks of {platform.title}"
        f" have {' or '.join(map(str, platform.sector_sizes))}"
    )


def find_boot_modes(facts: DiskFacts) -> list[str]:
    """Return which firmwares boot the disk: ``bios``, ``uefi``."""
    table, records = facts.content.table, facts.content.boot_records
    is_gpt = table is not None and table.scheme == "gpt"
    modes = []
    if records.boot_code and (records.bios_boot is not None if is_gpt else bool(records.active)):
        modes.append("bios")
    if _loaders(facts):
        modes.append("uefi")
    return modes


def check_boot_mode(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that BIOS or UEFI finds a boot loader; every platform here offers both."""
    if modes := find_boot_modes(facts):
        firmwares = " and ".join(mode.upper() for mode in modes)
        return ok(f"there is a boot loader for {firmwares}; {platform.title} offers both")
    records = facts.content.boot_records
    system = "an EFI system partition without" if records.efi_system else "no EFI system partition with"
    code = "boot code" if records.boot_code else "no boot code"
    place = (
        "no BIOS boot partition and no active one" if records.bios_boot is None else "a BIOS boot partition"
    )
    damage = [
        f"partition {each.partition.number} is damaged: {each.damage}"
        for each in facts.content.volumes
        if each.partition and each.damage and each.partition.number == records.efi_system
    ]
    return fail(
        "; ".join(
            [
                f"the disk has {system} EFI/BOOT/BOOTX64.EFI or BOOTAA64.EFI",
                f"its first sector has {code}, with {place}",
                *damage,
            ]
        )
    )


def find_architectures(facts: DiskFacts) -> dict[str, str]:
    """Return the architectures of the loaders for UEFI and of the kernel, as far as they can be read."""
    found = {f"the loader {name}": value for name, value in _loaders(facts).items()}
    with suppress(CannotTell):
        entry = facts.entry()
        read_at, _ = entry.open(entry.choice.kernel)
        if kernel := detect_kernel_architecture(read_at(0, HEAD_BYTES)):
            found[_KERNEL] = kernel
    return found


def check_architecture(facts: DiskFacts, platform: Platform) -> Finding:
    """Check that the platform has machines on which loader and kernel run."""
    found = find_architectures(facts)
    if not found:
        raise CannotTell(
            "the architecture is unknown: the disk has neither a UEFI boot loader nor a readable kernel"
        )
    told = ", ".join(f"{what} is {value}" for what, value in found.items())
    loaders = {value for what, value in found.items() if what != _KERNEL}
    if _KERNEL in found and loaders and found[_KERNEL] not in loaders:
        return fail(f"loader and kernel differ: {told}")
    if not platform.architectures.issuperset(found.values()):
        return fail(f"{platform.title} has only {', '.join(sorted(platform.architectures))}: {told}")
    return ok(told)


def _loaders(facts: DiskFacts) -> dict[str, str]:
    """Return the architectures of the loaders for removable media, by name; by content where it tells."""
    found = {}
    records = facts.content.boot_records
    system = next(
        (v for v in facts.content.volumes if v.partition and v.partition.number == records.efi_system), None
    )
    for path in records.efi_loaders:
        name = path.rpartition("/")[2].upper()
        if name in _LOADERS and system and system.root:
            head = read_parts(find_node(system.root, path), path)(0, HEAD_BYTES)
            if head.startswith(b"MZ"):
                found[name] = detect_kernel_architecture(head) or _LOADERS[name]
    return found
