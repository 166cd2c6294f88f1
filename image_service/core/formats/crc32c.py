"""CRC-32C (Castagnoli), the checksum of ext4, btrfs, XFS and VHDX; zlib has another polynomial."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # reflected


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = tuple(map(_entry, range(256)))


def update_crc32c(crc: int, data: bytes) -> int:
    """Return the register after more bytes, neither inverted before nor after, as ext4 keeps its seed."""
    table = _TABLE
    for byte in data:
        crc = table[crc & 0xFF ^ byte] ^ crc >> 8
    return crc


def crc32c(data: bytes) -> int:
    """Return the checksum (RFC 3720 appendix B.4)."""
    return update_crc32c(0xFFFFFFFF, data) ^ 0xFFFFFFFF
