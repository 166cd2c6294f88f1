"""The bytes that hosts must get: a base image with a config in its embed area, spliced naively.

Nothing of this is shared with the service: the area is found by the name of its file in the ISO's directory,
and archive and compression are written from their formats alone.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY_BYTES = 1 << 20
_AREA_NAME = b"IGNITION.IMG;1"
_SECTOR = 2048
_MAX_STORED = 65535


@attrs.frozen(eq=False)
class SplicedBase:
    """A base image: its bytes, and where the config goes."""

    path: Path
    _bytes: mmap.mmap = attrs.field(repr=False)
    _area: int
    _area_bytes: int

    @classmethod
    def open(cls, path: Path) -> SplicedBase:
        """Open a live ISO of CoreOS; raises ValueError if it has no embed area."""
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        name = mapped.find(_AREA_NAME, 0, _DIRECTORY_BYTES)
        if name < 0:
            raise ValueError(f"{path} has no embed area for an Ignition config")
        # ECMA-119 9.1: a directory record has its extent's sector at 2, its length at 10, its name at 33.
        sector, length = struct.unpack_from("<I4xI", mapped, name - 33 + 2)
        return cls(path, mapped, sector * _SECTOR, length)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._bytes)

    def touches_config(self, start: int, stop: int) -> bool:
        """Return True if a range has bytes of the embed area."""
        return start < self._area + self._area_bytes and self._area < stop

    def read(self, start: int, stop: int, config: bytes = b"") -> bytes:
        """Return the bytes of a range of the image with a config; of the base image without one."""
        data = self._bytes[start:stop]
        if not config or not self.touches_config(start, stop):
            return data
        area = embed(config).ljust(self._area_bytes, b"\0")
        first, last = max(start, self._area), min(stop, self._area + self._area_bytes)
        inside = area[first - self._area : last - self._area]
        return data[: first - start] + inside + data[last - start :]


def embed(config: bytes) -> bytes:
    """Return a newc archive with one file, ``config.ign``, as gzip with stored blocks."""
    archive = b""
    for number, name, mode, data in ((0, b"config.ign\0", 0o100600, config), (0, b"TRAILER!!!\0", 0, b"")):
        numbers = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        archive += b"070701" + b"".join(b"%08x" % each for each in numbers) + name
        archive += bytes(-len(archive) % 4) + data
        archive += bytes(-len(archive) % 4)
    blocks = b""
    for position in range(0, len(archive), _MAX_STORED):
        block = archive[position : position + _MAX_STORED]
        is_last = position + _MAX_STORED >= len(archive)
        blocks += struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF) + block
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + blocks + struct.pack("<II", zlib.crc32(archive), len(archive))


def make_config(infra_env: str, answer: int) -> bytes:
    """Return the Ignition config in an answer about an infra-env: each has another token, as JWTs are."""
    token = f"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZ2VudCJ9.{answer:08d}"
    unit = {"name": "agent.service", "enabled": True, "contents": f"[Service]\nEnvironment=TOKEN={token}\n"}
    config = {"ignition": {"version": "3.2.0"}, "systemd": {"units": [unit]}, "infra_env": infra_env}
    return json.dumps(config).encode()
