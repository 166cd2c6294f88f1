"""The behaviour of clients, and the ranges that machines read of an image: synthetic traces.

Offsets and lengths are in bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

BLOCK = 4096
"""Ranges begin at multiples of this, and end at one or with the image."""
SHORTEST_BLOCKS, LONGEST_BLOCKS = 1, 32  # 4 to 128 KiB
MOUNT_RANGES = 3000
BOOT_RANGES = 100
DIRECTORY_BYTES = 1024 * 1024
"""Volume descriptors, path tables and directories, which come first in ISO 9660."""
BOOT_BYTES = 16 * 1024 * 1024
"""The boot loaders, their configuration and the EFI system partition follow."""
_DIRECTORY_FIRST = 16
_JUMP_ONE_IN = 32


class Profile(StrEnum):
    """The behaviour of a client: it reads images, or starts composes. Of a fleet each client mounts once."""

    MOUNT = "mount"
    BOOT = "boot"
    DOWNLOAD = "download"
    COMPOSER = "composer"
    FLEET = "ztp-3500"

    @property
    def is_mount(self) -> bool:
        """True if it reads ranges of images."""
        return self in {Profile.MOUNT, Profile.BOOT, Profile.FLEET}


def ranges(profile: Profile, size: int, random: Random) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the ranges of one mount; an empty image has none.

    A mount reads as a BMC does while a machine boots and installs: mostly sequentially, with jumps to the
    directories and the boot area. A boot is its first seconds: directories at random, then from the start.

    Args:
        profile: one that ``is_mount``.
        random: equal seeds make equal ranges.
    """
    if size == 0:
        return
    is_mount = profile is not Profile.BOOT
    position = _aligned(random.randrange(size)) if is_mount else 0
    for number in range(MOUNT_RANGES if is_mount else BOOT_RANGES):
        if number < _DIRECTORY_FIRST or (is_mount and random.randrange(_JUMP_ONE_IN) == 0):
            area = random.choice((DIRECTORY_BYTES, BOOT_BYTES)) if is_mount else DIRECTORY_BYTES
            start = _aligned(random.randrange(min(area, size)))
            yield start, _stop(start, size, random)
            continue
        start, position = position, _stop(position, size, random)
        yield start, position
        position %= size


def _stop(start: int, size: int, random: Random) -> int:
    return min(start + random.randint(SHORTEST_BLOCKS, LONGEST_BLOCKS) * BLOCK, size)


def _aligned(offset: int) -> int:
    return offset - offset % BLOCK
