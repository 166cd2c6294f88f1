"""A bitmap of the bytes that were read of an image: one bit for each of its grains."""

from __future__ import annotations

MAX_BYTES = 256
"""Of the bitmap of one image."""
_MAX_GRAINS = 8 * MAX_BYTES
_MIN_SHIFT = 9  # a sector of a disk


class Coverage:
    """Which grains of an image were read, at least in part.

    A grain is the smallest power of two, of at least 512 bytes, with which the bitmap of the image has at
    most `MAX_BYTES`: 64 KiB for an image of 100 MB, 1 MiB for one of 1.2 GB.

    Args:
        size: of the image, bytes.
    """

    __slots__ = ("_bits", "shift", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.shift = max(_MIN_SHIFT, ((size - 1) // _MAX_GRAINS).bit_length())
        """Of an offset, to get the number of its grain."""
        self._bits = bytearray((((size - 1) >> self.shift) >> 3) + 1)

    def add(self, start: int, stop: int) -> None:
        """Record that the bytes from `start` up to `stop` were read: at least one, all of the image."""
        bits, first, last = self._bits, start >> self.shift, (stop - 1) >> self.shift
        bits[first >> 3] |= 1 << (first & 7)
        if last == first:
            return
        bits[last >> 3] |= 1 << (last & 7)
        if last - first > 1:
            number = int.from_bytes(bits, "little") | ((1 << last) - (1 << first))
            self._bits = bytearray(number.to_bytes(len(bits), "little"))

    def merge(self, bitmap: bytes) -> None:
        """Add the bits of another coverage of the same image."""
        number = int.from_bytes(self._bits, "little") | int.from_bytes(bitmap, "little")
        self._bits = bytearray(number.to_bytes(len(self._bits), "little"))

    def clear(self) -> None:
        """Clear all bits."""
        self._bits = bytearray(len(self._bits))

    @property
    def bitmap(self) -> bytes:
        """The bits, that of the first grain in the lowest bit of the first byte."""
        return bytes(self._bits)

    def has(self, offset: int) -> bool:
        """Return True if the grain of an offset was read."""
        grain = offset >> self.shift
        return bool(self._bits[grain >> 3] >> (grain & 7) & 1)

    def count(self, start: int = 0, stop: int | None = None) -> int:
        """Return how many of the bytes from `start` up to `stop` are in grains that were read."""
        stop = self.size if stop is None else stop
        first, last = start >> self.shift, (stop - 1) >> self.shift
        number = (int.from_bytes(self._bits, "little") >> first) & ((1 << (last - first + 1)) - 1)
        found = number.bit_count() << self.shift
        if number & 1:
            found -= start - (first << self.shift)
        if number >> (last - first):
            found -= ((last + 1) << self.shift) - stop
        return found

    @property
    def is_prefix(self) -> bool:
        """True if the grains that were read are the first ones of the image, without a gap."""
        number = int.from_bytes(self._bits, "little")
        return not number & (number + 1)
