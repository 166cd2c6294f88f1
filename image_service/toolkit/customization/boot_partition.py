"""The boot partition of a CoreOS disk: found by its type and label, and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import FormatError, NotCustomizable
from image_service.core.formats.disk.partition_types import LINUX_FILE_SYSTEM
from image_service.core.formats.disk.partitions import read_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.formats.disk.model import VirtualDisk
    from image_service.core.formats.disk.partitions import Partition
    from image_service.toolkit.workspace.workspace import Workspace

_LABEL = "boot"
_NEEDED = {"BIOS-BOOT", "EFI-SYSTEM", _LABEL, "root"}  # to boot; other partitions may be cut
_CHUNK = 1024 * 1024


def find_boot_partition(disk: VirtualDisk) -> Partition:
    """Return the only partition with the type and the label of CoreOS.

    Raises:
        NotCustomizable: there is none, or more than one.
        FormatError: one of the partitions of CoreOS is cut or missing.
    """
    table = read_partitions(disk.read_at, disk.virtual_size)
    if table is None or table.scheme != "gpt":
        raise NotCustomizable(
            f"not a CoreOS disk: it has {'an MBR' if table else 'no partitions'}, not a GPT"
        )
    if any(partition.name in _NEEDED for partition in table.lost) or (table.losses and not table.partitions):
        raise FormatError("; ".join(table.losses))
    found = [
        partition
        for partition in table.partitions
        if (partition.type, partition.name) == (LINUX_FILE_SYSTEM, _LABEL)
    ]
    if len(found) != 1:
        raise NotCustomizable(
            f"not a CoreOS disk: {len(found)} of its {len(table.partitions)} partitions are Linux file"
            f" systems labeled {_LABEL}; it must be one"
        )
    return found[0]


def list_data(disk: VirtualDisk, partition: Partition) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of bytes that may be other than zeros in a partition, from its start."""
    for start, length in disk.data_extents():
        low = max(start, partition.offset)
        high = min(start + length, partition.offset + partition.length)
        if start >= partition.offset + partition.length:
            return
        for offset in range(low, high, _CHUNK):
            yield offset - partition.offset, min(_CHUNK, high - offset)


def copy_partition(disk: VirtualDisk, partition: Partition, target: Path, workspace: Workspace) -> None:
    """Copy a partition into a new sparse file."""
    workspace.reserve(
        sum(length for _, length in list_data(disk, partition)), "the copy of the boot partition"
    )
    workspace.progress.start("copy boot partition", partition.length)
    with target.open("xb") as file:
        file.truncate(partition.length)
        for offset, length in list_data(disk, partition):
            data = disk.read_at(partition.offset + offset, length)
            if data.count(0) != length:
                file.seek(offset)
                file.write(data)
            workspace.pace(length)
            workspace.progress.set(offset + length)
    workspace.progress.finish()
