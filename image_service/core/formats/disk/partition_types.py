"""The types of partitions that disk images have, with their plain names."""

from __future__ import annotations

from typing import Final

BIOS_BOOT: Final = "21686148-6449-6E6F-744E-656564454649"
EFI_SYSTEM: Final = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
LINUX_FILE_SYSTEM: Final = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
MICROSOFT_RESERVED: Final = "E3C9E316-0B5C-4DB8-817D-F92DF00215AE"
POWERPC_PREP: Final = "9E1A2D38-C612-4316-AA26-8B49521E5A8B"
MBR_EFI_SYSTEM: Final = "0xEF"

EXTENDED: Final = frozenset({"0x05", "0x0F", "0x85"})
"""MBR types of the partition that contains the logical ones."""

ROOT_ARCHITECTURES: Final = {
    "44479540-F297-41B2-9AF7-D131D5F0458A": "x86",
    "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709": "x86_64",
    "5EEAD9A9-FE09-4A1E-A1D7-520D00531306": "s390x",
    "69DAD710-2CE4-4E3C-B16C-21A1D49ABED3": "arm",
    "72EC70A6-CF74-40E6-BD49-4BDA08E8F224": "riscv64",
    "B921B045-1DF0-41C3-AF44-4C6F280D3FAE": "aarch64",
    "C31C45E6-3F39-412E-80FB-4809C4980599": "ppc64le",
}
"""Types of the root partition (Discoverable Partitions Specification), with the architecture of each."""

_NAMES: Final = {
    BIOS_BOOT: "BIOS boot",
    EFI_SYSTEM: "EFI system",
    LINUX_FILE_SYSTEM: "Linux file system",
    "024DEE41-33E7-11D3-9D69-0008C781F39F": "MBR partition scheme",
    "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F": "Linux swap",
    "3B8F8425-20E0-4F3B-907F-1A25A76F98E8": "Linux server data",
    "44479540-F297-41B2-9AF7-D131D5F0458A": "Linux root (x86)",
    "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709": "Linux root (x86-64)",
    "5DFBF5F4-2848-4BAC-AA5E-0D9A20B745A6": "Flatcar /usr",
    "5EEAD9A9-FE09-4A1E-A1D7-520D00531306": "Linux root (s390x)",
    "69DAD710-2CE4-4E3C-B16C-21A1D49ABED3": "Linux root (ARM)",
    "72EC70A6-CF74-40E6-BD49-4BDA08E8F224": "Linux root (riscv64)",
    "8484680C-9521-48C6-9C11-B0720656F69E": "Linux /usr (x86-64)",
    "B0E01050-EE5F-4390-949A-9101B17104E9": "Linux /usr (ARM64)",
    "8DA63339-0007-60C0-C436-083AC8230908": "Linux reserved",
    "933AC7E1-2EB4-4F13-B844-0E14E2AEF915": "Linux home",
    POWERPC_PREP: "PowerPC PReP boot",
    "A19D880F-05FC-4D3B-A006-743F0F84911E": "Linux RAID",
    "B921B045-1DF0-41C3-AF44-4C6F280D3FAE": "Linux root (ARM64)",
    "BC13C2FF-59E6-4262-A352-B275FD6F7172": "Linux extended boot",
    "C31C45E6-3F39-412E-80FB-4809C4980599": "Linux root (ppc64le)",
    "CA7D7CCB-63ED-4C53-861C-1742536059CC": "Linux LUKS",
    "DE94BBA4-06D1-4D40-A16A-BFD50179D6AC": "Windows recovery",
    MICROSOFT_RESERVED: "Microsoft reserved",
    "E6D6D379-F507-44C2-A23C-238F2A3DF928": "Linux LVM",
    "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7": "Microsoft basic data",
    "0x01": "FAT12",
    "0x04": "FAT16 below 32 MiB",
    "0x05": "extended",
    "0x06": "FAT16",
    "0x07": "NTFS or exFAT",
    "0x0B": "FAT32",
    "0x0C": "FAT32 (LBA)",
    "0x0E": "FAT16 (LBA)",
    "0x0F": "extended (LBA)",
    "0x17": "hidden NTFS, or an ISO 9660 image",
    "0x27": "Windows recovery",
    "0x41": "PowerPC PReP boot",
    "0x82": "Linux swap",
    "0x83": "Linux file system",
    "0x85": "Linux extended",
    "0x8E": "Linux LVM",
    "0xCD": "ISO 9660 image",
    "0xEE": "GPT protective",
    MBR_EFI_SYSTEM: "EFI system",
    "0xFD": "Linux RAID",
}


def type_name(partition_type: str) -> str:
    """Return the plain name of a partition's type (`Partition.type`); "unknown" if there is none."""
    return _NAMES.get(partition_type, "unknown")
