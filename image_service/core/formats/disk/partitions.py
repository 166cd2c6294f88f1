"""Partition tables: GPT (see `gpt`), and MBR with logical partitions.

    MBR, the first 512 bytes of the disk
      +440    4   identifier of the disk
      +446   64   four entries of 16 bytes: flag (1), unused (3), type (1), unused (3), first sector (4),
                  sectors (4)
      +510    2   55 AA
    extended      a partition in which each logical partition has a sector like an MBR before it: its first
                  entry is the logical partition, from that sector on; its second is the next such sector,
                  from the start of the extended partition on

A GPT counts only beside an MBR with an entry of type 0xEE that begins in sector 1, whatever its size, as for
Linux (block/partitions/efi.c) and EDK2. Beside another entry of this type Linux reads no partitions at all.
An MBR does not tell the size of its disk's sectors: 512 bytes are assumed.

A partition that ends behind the disk is cut there, as by Linux, and one that begins there is left out.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.gpt import GptCopy, read_gpt_copy
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.disk.partition_types import EXTENDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

SECTOR_SIZES = (SECTOR_BYTES, 4096)
"""Bytes of a sector that disks have."""

_BOOT_SIGNATURE = b"\x55\xaa"
_MBR_ENTRIES = struct.Struct("<B3xB3xII")
_FLAGS = {0, 0x80}
_FILE_SYSTEM_NAMES = ((3, b"NTFS    "), (3, b"EXFAT   "), (3, b"-FVE-FS-"), (54, b"FAT"), (82, b"FAT32"))
"""Signatures in the boot sectors of file systems, which end like an MBR: offset and name."""
_PROTECTIVE = 0xEE
_GPT_SECTOR = 1
_MAX_LOGICAL = 256
_FIRST_LOGICAL = 5


@attrs.frozen
class Partition:
    """A part of a disk.

    Args:
        number: as Linux counts: logical partitions of an MBR from 5 on.
        offset: bytes from the start of the disk.
        length: bytes.
        type: a GUID of a GPT in upper case, or an MBR's number as ``0x83``.
        name: of a GPT; else "".
        uuid: as Linux names it (PARTUUID), in lower case.
    """

    number: int
    offset: int
    length: int
    type: str
    name: str
    uuid: str

    def __str__(self) -> str:
        return f"partition {self.number} ({self.length} bytes at offset {self.offset})"


@attrs.frozen
class PartitionTable:
    """The partitions of a disk, by number.

    Args:
        scheme: ``gpt`` or ``mbr``.
        sector_size: bytes.
        partitions: all that are in use.
        uuid: of the disk, in lower case.
        is_hybrid: the MBR beside a GPT has further partitions, which are not listed.
        active: numbers of the MBR's partitions that are marked for booting.
        faults: of the table, although partitions are known.
        losses: those of the faults by which a partition is cut or missing.
        lost: partitions as the table has them, a part of which, or all, is behind the disk.
    """

    scheme: str
    sector_size: int
    partitions: tuple[Partition, ...]
    uuid: str
    is_hybrid: bool = False
    active: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    lost: tuple[Partition, ...] = ()


@attrs.frozen
class _MbrEntry:
    """An entry in use; sectors as it has them."""

    number: int
    flag: int
    type: int
    start: int
    sectors: int


def read_partitions(read_at: ReadAt, size: int) -> PartitionTable | None:
    """Return the partition table of a disk of `size` bytes; None if it has none.

    Raises:
        FormatError: the disk has a protective MBR, and no valid GPT.
    """
    sector = read_at(0, SECTOR_BYTES)
    if len(sector) < SECTOR_BYTES or not sector.endswith(_BOOT_SIGNATURE):
        return None
    entries = list(_parse_mbr(sector))
    if any(entry.type == _PROTECTIVE for entry in entries):
        return _read_gpt(read_at, size, entries)
    has_file_system = any(sector.startswith(name, offset) for offset, name in _FILE_SYSTEM_NAMES)
    if not entries or has_file_system or any(entry.flag not in _FLAGS for entry in entries):
        return None  # the boot sector of a file system, or a program alone
    return _read_mbr(read_at, size, entries, int.from_bytes(sector[440:444], "little"))


def _parse_mbr(sector: bytes) -> Iterator[_MbrEntry]:
    for number, fields in enumerate(_MBR_ENTRIES.iter_unpack(sector[446:510]), start=1):
        entry = _MbrEntry(number, *fields)
        is_protective = entry.type == _PROTECTIVE and entry.start == _GPT_SECTOR
        if entry.type and (entry.sectors or is_protective):
            yield entry


def _read_mbr(read_at: ReadAt, size: int, entries: list[_MbrEntry], identifier: int) -> PartitionTable:
    def partition(number: int, start: int, entry: _MbrEntry) -> Partition:
        length, kind = entry.sectors * SECTOR_BYTES, f"0x{entry.type:02X}"
        return Partition(number, start * SECTOR_BYTES, length, kind, "", f"{identifier:08x}-{number:02x}")

    partitions = [partition(entry.number, entry.start, entry) for entry in entries]
    active = [entry.number for entry in entries if entry.flag]
    losses: list[str] = []
    for extended in [each for each in partitions if each.type in EXTENDED]:
        logical = _read_logical(read_at, extended, losses)
        for number, (start, entry) in enumerate(
            logical, start=max(_FIRST_LOGICAL, partitions[-1].number + 1)
        ):
            partitions.append(partition(number, start, entry))
    table = PartitionTable("mbr", SECTOR_BYTES, (), f"{identifier:08x}", active=tuple(active))
    return _fill(table, partitions, losses, size)


def _read_logical(read_at: ReadAt, extended: Partition, losses: list[str]) -> Iterator[tuple[int, _MbrEntry]]:
    """Yield the first sectors and the entries of the logical partitions, up to where the list is damaged."""
    first, seen = extended.offset // SECTOR_BYTES, set[int]()
    table = first
    while table not in seen:
        seen.add(table)
        if not first <= table < first + extended.length // SECTOR_BYTES or len(seen) > _MAX_LOGICAL:
            break
        sector = read_at(table * SECTOR_BYTES, SECTOR_BYTES)
        if not sector.endswith(_BOOT_SIGNATURE) or len(sector) < SECTOR_BYTES:
            break
        following = None
        for entry in _parse_mbr(sector):
            if f"0x{entry.type:02X}" in EXTENDED:
                following = first + entry.start
            elif entry.number == 1:
                yield table + entry.start, entry
        if following is None:
            return
        table = following
    losses.append(
        f"the list of logical partitions is damaged: after {len(seen) - 1} sectors it goes to sector {table}"
    )


def _read_gpt(read_at: ReadAt, size: int, entries: list[_MbrEntry]) -> PartitionTable:
    problems = []
    for sector_size in SECTOR_SIZES:
        try:
            primary = read_gpt_copy(read_at, size, sector_size, 1)
        except FormatError as error:
            problems.append(error.detail)
            continue
        faults = _compare_with_backup(read_at, size, primary)
        return _gpt_table(primary, entries, faults, size)
    for sector_size in SECTOR_SIZES:
        try:
            backup = read_gpt_copy(read_at, size, sector_size, size // sector_size - 1)
        except FormatError:
            continue
        fault = f"{problems[SECTOR_SIZES.index(sector_size)]}; its backup is valid"
        return _gpt_table(backup, entries, [fault], size)
    raise FormatError(f"the disk has a protective MBR, but no valid GPT: {'; '.join(problems)}")


def _compare_with_backup(read_at: ReadAt, size: int, primary: GptCopy) -> list[str]:
    if not 1 < primary.other < size // primary.sector_size:
        return [f"the backup of the GPT, in sector {primary.other}, is outside the disk"]
    try:
        backup = read_gpt_copy(read_at, size, primary.sector_size, primary.other)
    except FormatError as error:
        return [f"the backup is not valid: {error.detail}"]
    if (backup.disk, backup.entries) != (primary.disk, primary.entries):
        return [f"the backup of the GPT, in sector {primary.other}, has other partitions"]
    return []


def _gpt_table(copy: GptCopy, entries: list[_MbrEntry], faults: list[str], size: int) -> PartitionTable:
    protective = [entry for entry in entries if entry.type == _PROTECTIVE]
    table = PartitionTable(
        scheme="gpt",
        sector_size=copy.sector_size,
        partitions=(),
        uuid=copy.disk,
        is_hybrid=len(protective) < len(entries),
        active=tuple(entry.number for entry in entries if entry.flag),
    )
    if all(entry.start != _GPT_SECTOR for entry in protective):
        loss = (
            f"the protective MBR begins in sector {protective[0].start}, not in sector {_GPT_SECTOR}:"
            " Linux and UEFI ignore the GPT, and the disk has no partitions for them"
        )
        return attrs.evolve(table, faults=(loss,), losses=(loss,))
    partitions = [
        Partition(
            number=entry.number,
            offset=entry.first * copy.sector_size,
            length=(entry.last - entry.first + 1) * copy.sector_size,
            type=entry.type.upper(),
            name=entry.name,
            uuid=entry.uuid,
        )
        for entry in copy.parse_entries()
    ]
    return _fill(attrs.evolve(table, faults=tuple(faults)), partitions, [], size)


def _fill(table: PartitionTable, partitions: list[Partition], losses: list[str], size: int) -> PartitionTable:
    """Return a table with the parts of partitions that are on a disk of `size` bytes, and with losses."""
    overlaps = [
        f"{one} and {other} overlap"
        for one, other in pairwise(sorted(partitions, key=lambda each: each.offset))
        if one.offset + one.length > other.offset and not {one.type, other.type} & EXTENDED
    ]
    kept, lost = [], []
    for partition in partitions:
        length = min(partition.length, size - partition.offset)
        if length != partition.length or length <= 0:
            lost.append(partition)
        if length > 0:
            kept.append(attrs.evolve(partition, length=length))
    all_losses = (*losses, *(f"{partition} is not in the disk of {size} bytes" for partition in lost))
    return attrs.evolve(
        table,
        partitions=tuple(kept),
        faults=(*table.faults, *overlaps, *all_losses),
        losses=all_losses,
        lost=tuple(lost),
    )
