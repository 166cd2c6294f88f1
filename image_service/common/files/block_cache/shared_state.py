"""The state that the processes of a cache directory share: who is about to send, who writes.

Each process has a slot in the file `state`, which all have mapped, and a lock on the slot while it lives.

A sender asks whether granules are present and sends them in the same turn of the reactor. So a granule that
has become absent may be punched once the reactor of each process has begun another turn. The process that
evicts increments the epoch; every process copies it into its slot now and then, between turns.

A process reserves disk space before it writes. Bytes that others reserve count as used.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.common.files.modes import private_mode
from image_service.common.files.ofd_locks import EXCLUSIVE, is_locked, lock, reopen, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIRECTORY, BUDGET, EVICTION = 0, 1, 2
"""Locks: on opening and removing versions, on reserving space, on evicting."""
MAX_PROCESSES = 256
STATE = "state"

# Numbers of 64-bit words, which are read and written as a whole.
_EPOCH, _FIRST_SLOT, _SLOT_WORDS = 0, 8, 8
_PASSED, _RESERVED = 0, 1  # in a slot
_NO_SENDERS = 2**63
_SLOT_LOCKS = 1 << 40
_SLOTS = range(_FIRST_SLOT, _FIRST_SLOT + MAX_PROCESSES * _SLOT_WORDS, _SLOT_WORDS)


class SharedState:
    """The state of a cache directory, with a slot of this process.

    Args:
        directory: exists.

    Raises:
        OSError: the file cannot be opened, or all slots are taken.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(directory / STATE, flags, private_mode(0o600))
        size = 8 * (_FIRST_SLOT + MAX_PROCESSES * _SLOT_WORDS)
        os.posix_fallocate(self._descriptor, 0, size)  # else a full disk kills those who have it mapped
        self._mapped = mmap.mmap(self._descriptor, size)
        self._words = memoryview(self._mapped).cast("Q")
        self._slot = self._take_slot()

    def _take_slot(self) -> int:
        for slot in _SLOTS:
            if try_lock(self._descriptor, EXCLUSIVE, _SLOT_LOCKS + slot):
                self._words[slot + _PASSED] = _NO_SENDERS
                self._words[slot + _RESERVED] = 0
                return slot
        raise OSError(f"{MAX_PROCESSES} processes use the cache already")

    def close(self) -> None:
        """Give up the slot."""
        self._words.release()
        self._mapped.close()
        os.close(self._descriptor)

    @contextmanager
    def lock(self, which: int) -> Iterator[None]:
        """Wait for a lock and hold it, against other threads of this process too."""
        descriptor = reopen(self._descriptor)
        try:
            lock(descriptor, EXCLUSIVE, which)
            yield
        finally:
            os.close(descriptor)

    # Senders and eviction.

    def pass_epoch(self) -> None:
        """Tell the others that no sender of this process is between asking and sending."""
        self._words[self._slot + _PASSED] = self._words[_EPOCH]

    def end_senders(self) -> None:
        """Tell the others that this process has no sender, until `pass_epoch`."""
        self._words[self._slot + _PASSED] = _NO_SENDERS

    def begin_epoch(self) -> int:
        """Begin another epoch and return it. The caller has the lock EVICTION."""
        self._words[_EPOCH] += 1
        return self._words[_EPOCH]

    def have_passed(self, epoch: int) -> bool:
        """Return True if every process that lives has passed an epoch, or has no senders."""
        return all(self._words[slot + _PASSED] >= epoch or not self._lives(slot) for slot in _SLOTS)

    # Space.

    def reserved_bytes(self) -> int:
        """Return the bytes that all living processes have reserved. The caller has the lock BUDGET."""
        return sum(
            reserved for slot in _SLOTS if (reserved := self._words[slot + _RESERVED]) and self._lives(slot)
        )

    def reserve(self, count: int) -> None:
        """Reserve bytes; negative: give them back. The caller has the lock BUDGET."""
        self._words[self._slot + _RESERVED] += count

    def _lives(self, slot: int) -> bool:
        return slot == self._slot or is_locked(self._descriptor, _SLOT_LOCKS + slot)
