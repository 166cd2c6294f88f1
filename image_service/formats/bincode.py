"""bincode 1.3 with variable-length integers, the encoding of coreos-installer's own files.

A file is its fields, one after another, without names or types:

    number    up to 250: one byte; else 251, 252 or 253 and 2, 4 or 8 bytes, little-endian
    bytes     their length as a number; then the bytes
"""

from __future__ import annotations

import attrs

from image_service.errors import FormatError

_ONE_BYTE = range(251)
_LENGTHS = {251: 2, 252: 4, 253: 8}


@attrs.define
class BincodeReader:
    """Reads the fields of a file in order; raises FormatError where the data ends or is invalid.

    Args:
        path: of the file, for messages.
        data: its content, or the beginning of it.
    """

    path: str
    _data: bytes = attrs.field(repr=False)
    _position: int = 0

    def read(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        start, end = self._position, self._position + length
        if end > len(self._data):
            raise FormatError(f"{self.path} ends too soon: {length} bytes are due at its offset {start}")
        self._position = end
        return self._data[start:end]

    def read_number(self) -> int:
        """Read a number of at most 64 bits."""
        first = self.read(1)[0]
        if first in _ONE_BYTE:
            return first
        if first not in _LENGTHS:
            raise FormatError(
                f"{self.path} has no number of at most 64 bits at its offset {self._position - 1}"
            )
        return int.from_bytes(self.read(_LENGTHS[first]), "little")

    def read_bytes(self) -> bytes:
        """Read bytes that follow their length."""
        return self.read(self.read_number())
