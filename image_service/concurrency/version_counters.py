"""Stamps: numbers in shared memory, by which each process sees that what it knows has changed elsewhere.

Whoever changes something renews its stamp, once others can find the change where it is kept. Whoever knows
something has read the stamp before it looked, and trusts what it knows for as long as the stamp is the same.
"""

from __future__ import annotations

import secrets

COUNT = 64 * 1024
"""Of stamps. Two things that share one cost each other a look at where they are kept, and nothing else."""
_STAMP_BYTES = 8
SIZE_BYTES = COUNT * _STAMP_BYTES


class VersionCounters:
    """A table of stamps.

    Args:
        memory: at least `SIZE_BYTES`, writable, zeros at first; shared with other processes, which pass it
            too. None: no other process has any part in what is stamped.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self.are_shared = memory is not None
        table = memoryview(bytearray(SIZE_BYTES)) if memory is None else memory[:SIZE_BYTES]
        self._table = table.cast("B").cast("Q")  # aligned, so that none is ever seen half written

    @staticmethod
    def slot(key: bytes) -> int:
        """Give the place of a stamp.

        Args:
            key: a digest of what is stamped, at least eight bytes; alike in all processes.

        Returns:
            below `COUNT`.
        """
        return int.from_bytes(key[:_STAMP_BYTES]) % COUNT

    def __getitem__(self, slot: int) -> int:
        """Give the stamp at a place; 0: it was never renewed."""
        return self._table[slot]

    def renew(self, slot: int) -> int:
        """Write another stamp: a random one, so that two processes never write the same.

        Args:
            slot: its place.

        Returns:
            the stamp. What stands there may be another process's by now.
        """
        stamp = self._table[slot] = 1 + secrets.randbelow((1 << 64) - 1)
        return stamp

    def note(self, *slots: int) -> tuple[tuple[int, int], ...]:
        """Give stamps with their places, for ``are_as``; none where nobody else has any part in them."""
        return tuple((slot, self._table[slot]) for slot in slots) if self.are_shared else ()

    def are_as(self, noted: tuple[tuple[int, int], ...]) -> bool:
        """Tell whether none of these stamps was renewed since they were noted."""
        for slot, stamp in noted:  # noqa: SIM110 - a generator would take several times as long
            if self._table[slot] != stamp:
                return False
        return True
