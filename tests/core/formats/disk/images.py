"""Disk images written by qemu-img and qemu-io, which are the oracle of their readers too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.formats.disk.reading_disks import read_disk
from tests.acceptance.clients import run_client
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from image_service.core.formats.disk.model import DiskFormat, VirtualDisk


def qemu_name(disk_format: DiskFormat) -> str:
    """Return qemu's name of a format."""
    return {"vhd": "vpc"}.get(disk_format.value, disk_format.value)


@attrs.frozen
class Write:
    """One write to a disk: bytes of a pattern, zeros (``write -z``), or compressed bytes of it."""

    offset: int
    length: int
    pattern: int
    kind: str = ""  # "", "-z", "-c"


Writes: TypeAlias = "Iterable[Write]"


def make_image(
    path: Path, disk_format: DiskFormat, size: int, options: str = "", writes: Writes = ()
) -> Path:
    """Create an image by qemu-img, and write to it by qemu-io.

    Args:
        path: of the image.
        disk_format: of the image.
        size: bytes of the disk.
        options: of ``qemu-img create -o``.
        writes: in order.
    """
    name = qemu_name(disk_format)
    run_client("qemu-img", "create", "-q", "-f", name, *(["-o", options] if options else []), path, str(size))
    write_image(path, name, writes)
    return path


def write_image(path: Path, name: str, writes: Writes) -> None:
    """Write to an image of the format that qemu calls ``name``."""
    commands = [
        f"write {one.kind} {'' if one.kind == '-z' else f'-P {one.pattern}'} {one.offset} {one.length}"
        for one in writes
    ]
    if commands:
        run_client("qemu-io", "-f", name, *(part for command in commands for part in ("-c", command)), path)


def raw_form(path: Path, name: str) -> bytes:
    """Return the disk's bytes, converted by qemu-img."""
    raw = path.with_suffix(".oracle")
    run_client("qemu-img", "convert", "-f", name, "-O", "raw", path, raw)
    return raw.read_bytes()


def mapped_data(path: Path, name: str) -> list[tuple[int, int]]:
    """Return the extents that ``qemu-img map`` takes for data, those that touch joined.

    The file loses its holes: what the file system knows of them would be in the answer.
    """
    path.write_bytes(path.read_bytes())
    return join_extents(
        (item["start"], item["length"])
        for item in json.loads(run_client("qemu-img", "map", "--output=json", "-f", name, path))
        if item["data"] and not item["zero"]
    )


def join_extents(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending extents, those that touch joined."""
    joined: list[tuple[int, int]] = []
    for offset, length in extents:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return joined


def disk_of(path: Path, disk_format: DiskFormat) -> VirtualDisk:
    """Return the disk in a file."""
    image = path.read_bytes()
    return read_disk(disk_format, reader(image), len(image))
