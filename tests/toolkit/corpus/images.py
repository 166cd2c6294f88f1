"""What hostile files are made of: images by qemu-img, numbers written over them, a file of the host."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import attrs

from tests.acceptance.clients import run_client

MIB = 1 << 20
DISK_BYTES = 4 * MIB
HOST_LINE = b"a line of a file of the host\n"
"""What the file of the host consists of; it must be in no output."""

Build: TypeAlias = Callable[[Path, Path], Path]
"""(private directory, a file of the host) to the hostile file."""
Change: TypeAlias = tuple[int, str, int]
"""Offset, format for struct, and a number."""


@attrs.frozen
class Hostile:
    """A file that must be refused.

    Args:
        name: of the attack.
        reason: a regular expression that matches the reason of the refusal.
        build: makes the file.
        declared: the format that the caller declares; None: none.
    """

    name: str
    reason: str
    build: Build
    declared: str | None = None


def write_host_file(directory: Path) -> Path:
    """Write the file that hostile images refer to."""
    path = directory / "host-secret"
    path.write_bytes((HOST_LINE * (DISK_BYTES // len(HOST_LINE) + 1))[:DISK_BYTES])
    return path


def disk_content() -> bytes:
    """Return a disk: data, zeros, and data at its end."""
    return bytes(range(256)) * 2048 + bytes(DISK_BYTES - MIB) + b"\xa5" * (MIB // 2)


@cache
def image(disk_format: str, options: str = "", *, compressed: bool = False) -> bytes:
    """Return an image of `disk_content`, made by qemu-img."""
    return convert(disk_content(), disk_format, options, compressed=compressed)


def convert(disk: bytes, disk_format: str, options: str = "", *, compressed: bool = False) -> bytes:
    """Return an image of a disk, made by qemu-img."""
    with TemporaryDirectory() as directory:
        source, target = Path(directory, "source"), Path(directory, "target")
        source.write_bytes(disk)
        flags = [*(["-o", options] if options else []), *(["-c"] if compressed else [])]
        run_client("qemu-img", "convert", "-f", "raw", "-O", disk_format, *flags, source, target)
        return target.read_bytes()


def patched(data: bytes, *changes: Change) -> bytes:
    """Return `data` with numbers written over it."""
    edited = bytearray(data)
    for offset, code, number in changes:
        struct.pack_into(code, edited, offset, number)
    return bytes(edited)


def number_at(data: bytes, offset: int, code: str) -> int:
    """Return the number at an offset."""
    return int(struct.unpack_from(code, data, offset)[0])


def file_of(make: Callable[[], bytes], name: str = "hostile.img") -> Build:
    """Return what builds a file of the bytes that `make` returns."""

    def build(directory: Path, _host: Path) -> Path:
        path = directory / name
        path.write_bytes(make())
        return path

    return build
