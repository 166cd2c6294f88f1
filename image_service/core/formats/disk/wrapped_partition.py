"""The GPT of a disk with one partition: the bytes before and after the partition."""

from __future__ import annotations

import hashlib
import struct
import uuid
import zlib

import attrs

from image_service.core.formats.disk.gpt import GPT_ENTRY, GPT_HEADER, GPT_SIGNATURE
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.disk.partition_types import LINUX_FILE_SYSTEM

OFFSET = 1 << 20
"""Of the partition: aligned for every medium."""
IDENTITY_BYTES = 1 << 20
"""Of the partition, from its start: they contain the identity of its file system."""

_ENTRIES = 128
_TABLE_SECTORS = _ENTRIES * GPT_ENTRY.size // SECTOR_BYTES
_REVISION = 0x10000
_PROTECTIVE = struct.Struct("<B3sB3sII")
_LARGEST = 0xFFFFFFFF  # sectors that an MBR can count


@attrs.frozen
class WrappedPartition:
    """A disk with one partition, of the type Linux file system. Equal partitions make equal disks.

    Args:
        size: bytes of the partition: sectors.
        beginning: the first `IDENTITY_BYTES` of it, from which the GUIDs are derived.
    """

    size: int
    beginning: bytes = attrs.field(repr=False)

    @property
    def disk_size(self) -> int:
        """Bytes of the disk: MiB."""
        end = OFFSET + self.size + (1 + _TABLE_SECTORS) * SECTOR_BYTES
        return -(-end // OFFSET) * OFFSET

    def head(self) -> bytes:
        """Return the first bytes of the disk: protective MBR, header and entries."""
        sectors = self.disk_size // SECTOR_BYTES
        entry = _PROTECTIVE.pack(0, b"\0\2\0", 0xEE, b"\xff" * 3, 1, min(sectors - 1, _LARGEST))
        mbr = bytes(446) + entry.ljust(64, b"\0") + b"\x55\xaa"
        return mbr + self._header(1, sectors - 1, 2) + self._table()

    def tail(self) -> bytes:
        """Return the last bytes of the disk: the backup of entries and header."""
        last = self.disk_size // SECTOR_BYTES - 1
        return self._table() + self._header(last, 1, last - _TABLE_SECTORS)

    def _table(self) -> bytes:
        first = OFFSET // SECTOR_BYTES
        entry = GPT_ENTRY.pack(
            uuid.UUID(LINUX_FILE_SYSTEM).bytes_le,
            self._guid(b"partition"),
            first,
            first + self.size // SECTOR_BYTES - 1,
            bytes(72),
        )
        return entry.ljust(_ENTRIES * GPT_ENTRY.size, b"\0")

    def _header(self, sector: int, other: int, table: int) -> bytes:
        last_usable = self.disk_size // SECTOR_BYTES - 2 - _TABLE_SECTORS
        usable = (2 + _TABLE_SECTORS, last_usable)
        entries = (table, _ENTRIES, GPT_ENTRY.size, zlib.crc32(self._table()))

        def pack(checksum: int) -> bytes:
            start = (GPT_SIGNATURE, _REVISION, GPT_HEADER.size, checksum, 0)
            return GPT_HEADER.pack(*start, sector, other, *usable, self._guid(b"disk"), *entries)

        return pack(zlib.crc32(pack(0))).ljust(SECTOR_BYTES, b"\0")

    def _guid(self, purpose: bytes) -> bytes:
        digest = hashlib.sha256(purpose + self.size.to_bytes(8, "little") + self.beginning).digest()
        return uuid.UUID(bytes=digest[:16], version=4).bytes_le
