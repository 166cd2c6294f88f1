"""The mount of an ISO by a BMC: a HEAD, then 3,000 ranges of 4 to 128 KiB, mostly sequential.

The recording is ``mount.txt``, an offset and a length in each line, for an image of 960 MiB. This made it:
``python -m bench.mount >bench/mount.txt``.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.replay import learn, replay, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.replay import Exchange
    from bench.wrk import Traffic

_RECORDING = Path(__file__).with_name("mount.txt")
_RANGES = 3000
_KIB = 1024
_SECTOR_BYTES = 2 * _KIB
_IMAGE_BYTES = 960 * _KIB * _KIB
_LONGEST_BYTES = 128 * _KIB


def drive_mount(url: str, file_bytes: int, seconds: int) -> Traffic:
    """Replay the recording on one connection, over and over."""
    return replay(url, [_script(url, file_bytes)], seconds)


@cache
def _script(url: str, file_bytes: int) -> tuple[Exchange, ...]:
    ranges = (request(url, first=first, length=length) for first, length in recorded(file_bytes))
    return learn(url, [request(url, "HEAD"), *ranges])


def recorded(file_bytes: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each range, within an image of a size; in a small one the offsets begin again."""
    room = (file_bytes - _LONGEST_BYTES) // _SECTOR_BYTES * _SECTOR_BYTES
    for line in _RECORDING.read_text().splitlines():
        offset, length = map(int, line.split())
        yield offset % room, length


def made_up() -> Iterator[tuple[int, int]]:
    """Ranges as firmware and a kernel read them: short looks here and there, and long runs of one size."""
    chance = random.Random(960)  # noqa: S311 - a recording, always the same
    left = _RANGES
    while left:
        run = min(left, chance.choice((1, 2, 4, 60, 120, 240)))
        length = chance.choice((4, 8, 16, 32, 64, 64, 128)) * _KIB
        offset = chance.randrange((_IMAGE_BYTES - run * length) // _SECTOR_BYTES) * _SECTOR_BYTES
        yield from ((offset + number * length, length) for number in range(run))
        left -= run


if __name__ == "__main__":
    for first_byte, count in made_up():
        print(first_byte, count)
