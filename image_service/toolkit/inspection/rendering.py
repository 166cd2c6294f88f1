"""A description of a disk image as JSON and as text. Programs rely on the names in the JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.command_line.parser import printable
from image_service.core.formats.disk.partition_types import type_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.toolkit.inspection.content import DiskContent, Volume
    from image_service.toolkit.inspection.inspect import ImageDescription
    from image_service.toolkit.inspection.operating_system import CoreosFacts, OperatingSystems

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def to_json(description: ImageDescription) -> dict[str, Any]:
    """Return the members of ``image-toolkit inspect --json`` that are its own."""
    content, systems = description.content, description.systems
    return {
        "safe": not description.reasons,
        "reasons": list(description.reasons),
        "warnings": list(description.warnings),
        "left_out": list(description.left_out),
        "image": {
            "format": description.format,
            "subformat": description.subformat,
            "size": description.size,
            "actual_size": description.actual_size,
            "virtual_size": description.virtual_size,
        },
        "partition_table": content and _table_to_json(content),
        "volumes": [_volume_to_json(volume) for volume in content.volumes] if content else [],
        "boot": content and attrs.asdict(content.boot_records),
        "iso": content.iso.volume_id if content and content.iso else None,
        "operating_systems": [
            {
                "name": release.name,
                "id": release.values.get("ID", ""),
                "version": release.values.get("VERSION_ID", ""),
                "partition": release.partition,
                "path": release.path,
            }
            for release in (systems.releases if systems else ())
        ],
        "coreos": attrs.asdict(systems.coreos) if systems and systems.coreos else None,
        "windows": attrs.asdict(systems.windows) if systems and systems.windows else None,
    }


def _table_to_json(content: DiskContent) -> dict[str, Any] | None:
    table = content.table
    if not table:
        return {"scheme": None, "damage": content.table_damage} if content.table_damage else None
    return {
        "scheme": table.scheme,
        "sector_size": table.sector_size,
        "uuid": table.uuid,
        "hybrid": table.is_hybrid,
        "faults": list(table.faults),
        "damage": None,
    }


def _volume_to_json(volume: Volume) -> dict[str, Any]:
    partition, system = volume.partition, volume.file_system
    return {
        "partition": partition
        and {
            "number": partition.number,
            "type": partition.type,
            "type_name": type_name(partition.type),
            "name": partition.name,
            "uuid": partition.uuid,
            "offset": partition.offset,
            "size": partition.length,
        },
        "file_system": system
        and {
            "kind": system.kind,
            "label": system.label,
            "uuid": system.uuid,
            "readable": system.root is not None,
            "needs_recovery": system.needs_recovery,
            "problem": system.problem,
        },
        "damage": volume.damage,
    }


def to_text(description: ImageDescription) -> str:
    """Return lines of a name and a value each."""
    return "\n".join(f"{name:18}{printable(value)}".rstrip() for name, value in _lines(description))


def _lines(description: ImageDescription) -> Iterator[tuple[str, str]]:
    yield "format", " ".join(filter(None, (description.format, description.subformat)))
    if description.virtual_size is not None:
        yield "virtual size", _bytes(description.virtual_size)
    yield "file size", f"{_bytes(description.size)}, allocated: {_bytes(description.actual_size)}"
    if description.sha256:
        yield "SHA-256", description.sha256
    yield from (("left out", f"{what}; --digest reads all of the file") for what in description.left_out)
    yield "safe", "no" if description.reasons else "yes"
    yield from (("", reason) for reason in description.reasons)
    yield from (("warning", warning) for warning in description.warnings)
    if description.content:
        yield from _content_lines(description.content)
    if description.systems:
        yield from _system_lines(description.systems)


def _content_lines(content: DiskContent) -> Iterator[tuple[str, str]]:
    table, boot = content.table, content.boot_records
    if content.iso:
        yield "ISO 9660", f"{content.iso.volume_id}; image-service inspect describes ISOs of CoreOS"
    if table:
        hybrid = ", hybrid with other partitions in its MBR" if table.is_hybrid else ""
        yield "partition table", f"{table.scheme}, sectors of {table.sector_size} bytes, {table.uuid}{hybrid}"
        yield from (("", fault) for fault in table.faults)
    else:
        yield "partition table", f"damaged: {content.table_damage}" if content.table_damage else "none"
    for volume in content.volumes:
        yield _volume_line(volume)
    found = [
        "BIOS boot code" if boot.boot_code else "",
        f"BIOS boot partition {boot.bios_boot}" if boot.bios_boot else "",
        f"active partition {', '.join(map(str, boot.active))}" if boot.active else "",
        f"EFI system partition {boot.efi_system}" if boot.efi_system else "",
        *boot.efi_loaders,
        "El Torito" if boot.el_torito else "",
    ]
    yield "boot records", ", ".join(filter(None, found)) or "none"


def _volume_line(volume: Volume) -> tuple[str, str]:
    partition, system = volume.partition, volume.file_system
    told = "nothing known"
    if volume.damage:
        told = f"damaged: {volume.damage}"
    elif system:
        told = " ".join(filter(None, (system.kind, system.label, system.uuid)))
        told += "; its journal wants replay" if system.needs_recovery else ""
        told += f"; {system.problem}" if system.problem else ""
    if not partition:
        return "whole disk", told
    name = f" {partition.name}" if partition.name else ""
    where = f"{_bytes(partition.length)} at offset {partition.offset}"
    return f"partition {partition.number}", f"{type_name(partition.type)}{name}, {where}: {told}"


def _system_lines(systems: OperatingSystems) -> Iterator[tuple[str, str]]:
    for release in systems.releases:
        yield "operating system", f"{release.name} ({release.path}{_on(release.partition)})"
    if systems.coreos:
        yield from _coreos_lines(systems.coreos)
    if windows := systems.windows:
        loaders = [*windows.efi_files, *(f"BOOTMGR{_on(number)}" for number in windows.ntfs)]
        yield "Windows", ", ".join(loaders) or "no loader"
        yield "registry hives", windows.damage or ", ".join(windows.registry_hives) or "none"


def _coreos_lines(coreos: CoreosFacts) -> Iterator[tuple[str, str]]:
    yield "CoreOS", f"{coreos.osname or 'unknown'}{_on(coreos.partition)}"
    yield "first boot", "yes" if coreos.first_boot else "no: ignition.firstboot is missing"
    yield "Ignition config", "embedded" if coreos.ignition_config else "none"
    yield "network keyfiles", "embedded" if coreos.network_keyfiles else "none"
    yield "platform", coreos.platform or "none"
    if coreos.damage:
        yield "boot entries", f"damaged: {coreos.damage}"
    for entry in coreos.entries:
        yield "boot entry", f"{entry.file}: {entry.damage or entry.title}"
        yield "", entry.kernel_arguments


def _on(partition: int | None) -> str:
    return f" on partition {partition}" if partition else ""


def _bytes(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count} bytes ({count / unit:.1f} {name})"
    return f"{count} bytes"
