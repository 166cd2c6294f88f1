"""Names of block devices in fstab and in ``root=``: whether they find a file system of the disk elsewhere.

Names by UUID and label stay with the content of the disk. Names by the hardware (``/dev/sda1``, by-id,
by-path, major and minor numbers) do not; those by-id that a volume manager makes do.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from image_service.core.formats.disk.partition_types import (
    BIOS_BOOT,
    EXTENDED,
    MICROSOFT_RESERVED,
    POWERPC_PREP,
)

if TYPE_CHECKING:
    from image_service.toolkit.inspection.content import DiskContent, Volume

_HARDWARE = re.compile(
    r"/dev/(?:x?vd|sd|hd|nvme|mmcblk|dasd|pmem)[a-z0-9]*"
    r"|/dev/disk/by-id/(?!dm-|lvm-|md-|bcache-).*|/dev/disk/by-(?:path|diskseq)/.*"
)
TAGS = ("UUID", "LABEL", "PARTUUID", "PARTLABEL")
"""What a name begins with, before its equals sign."""

_LINK = re.compile(r"/dev/disk/by-(uuid|label|partuuid|partlabel)/(.*)")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_RELATIVE = re.compile(r"(.*)/PARTNROFF=([+-]?[0-9]{1,3})", re.IGNORECASE)
_CONTAINERS = {"LVM2_member", "crypto_LUKS", "BitLocker"}
_WITHOUT_FILES = {BIOS_BOOT, POWERPC_PREP, MICROSOFT_RESERVED, *EXTENDED}
_UNNAMED = {"UUID": {"squashfs", "iso9660", "BitLocker"}, "LABEL": {"exfat", "squashfs", "BitLocker"}}
"""Kinds whose UUID or label is not read here."""


class DeviceName(enum.Enum):
    """What a name of a device finds on another machine."""

    ON_DISK = enum.auto()
    MISSING = enum.auto()
    HARDWARE = enum.auto()
    UNKNOWN = enum.auto()


def judge_device(name: str, content: DiskContent) -> DeviceName:
    """Return what a name finds; UNKNOWN where a volume that cannot be read may have it."""
    name = name.replace('"', "")
    if _HARDWARE.fullmatch(name):
        return DeviceName.HARDWARE
    kind, _, value = name.partition("=")
    if link := _LINK.fullmatch(name):
        kind = link[1].upper()
        value = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), link[2])
    if kind not in TAGS or not value:
        return DeviceName.UNKNOWN
    if kind in {"PARTUUID", "PARTLABEL"}:
        return _judge_partition(kind, value, content)
    found = {_tag(kind, volume) for volume in content.volumes}
    if _fold(kind, value) in {_fold(kind, each) for each in found}:
        return DeviceName.ON_DISK
    if any(_may_have(kind, volume) for volume in content.volumes) or _has_lost_partitions(content):
        return DeviceName.UNKNOWN
    return DeviceName.MISSING


def _judge_partition(kind: str, value: str, content: DiskContent) -> DeviceName:
    partitions = [volume.partition for volume in content.volumes if volume.partition]
    offset = 0
    if kind == "PARTUUID" and (relative := _RELATIVE.fullmatch(value)):
        value, offset = relative[1], int(relative[2])
    tags = {each.number: each.uuid if kind == "PARTUUID" else each.name for each in partitions}
    numbers = [number for number, tag in tags.items() if _fold(kind, tag) == _fold(kind, value)]
    if any(number + offset in tags for number in numbers):
        return DeviceName.ON_DISK
    return DeviceName.UNKNOWN if _has_lost_partitions(content) else DeviceName.MISSING


def _has_lost_partitions(content: DiskContent) -> bool:
    return content.table_damage is not None or bool(content.table and content.table.losses)


def _tag(kind: str, volume: Volume) -> str:
    system = volume.file_system
    if system is None:
        return ""
    return system.uuid if kind == "UUID" else system.label


def _fold(kind: str, value: str) -> str:
    """Return the form in which names are compared: UUIDs in lower case, labels unchanged."""
    return value if kind.endswith("LABEL") else value.lower()


def _may_have(kind: str, volume: Volume) -> bool:
    """Return True if a volume may contain a file system of any name, or has a name that is not read."""
    system = volume.file_system
    if system is None:
        return volume.partition is None or volume.partition.type not in _WITHOUT_FILES
    is_unread = kind == "LABEL" and bool(system.problem) and not system.label
    return is_unread or system.kind in _CONTAINERS or system.kind in _UNNAMED[kind]
