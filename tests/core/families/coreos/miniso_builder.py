"""Builds coreos/miniso.dat, and live ISOs with a valid one, for tests.

What it writes is what coreos-installer does, but for the preset of the xz stream: 9 costs 100 ms each time.
"""

from __future__ import annotations

import lzma
from hashlib import sha256
from typing import TYPE_CHECKING

from image_service.core.families.coreos.minimal_iso import CopiedFile
from image_service.core.formats.iso9660.volume import read_iso9660
from tests.core.formats.filesystems.iso_builder import CREATED, SECTOR, VOLUME_ID, build_iso, live_files
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

MINISO = "coreos/miniso.dat"
ROOTFS = "images/pxeboot/rootfs.img"
ROOM = 16384  # bytes of miniso.dat that a builder of live ISOs reserves
MAGIC = b"MINISO\0\0"
WRITER = "0.26.0"


def number(value: int) -> bytes:
    """Return a number in bincode, in as few bytes as possible."""
    if value <= 250:
        return bytes([value])
    mark, size = next((251 + power, 2 << power) for power in range(4) if value < 1 << (16 << power))
    return bytes([mark]) + value.to_bytes(size, "little")


def pack_recipe(
    table: Iterable[tuple[int, int, int]],
    body: bytes,
    digest: bytes = bytes(32),
    *,
    count: int | None = None,
    body_length: int | None = None,
) -> bytes:
    """Return the fields of miniso.dat, valid or not.

    Args:
        table: first sectors in the minimal and the full ISO, and bytes, of each file.
        body: the xz stream.
        digest: SHA-256 of the minimal ISO.
        count: of the files, where it is to be a lie.
        body_length: where it is to be a lie.
    """
    rows = [b"".join(map(number, row)) for row in table]
    head = MAGIC + number(1) + number(len(WRITER)) + WRITER.encode()
    files = number(len(rows) if count is None else count) + b"".join(rows)
    return head + files + digest + number(len(body) if body_length is None else body_length) + body


def pack_minimal_iso(full: bytes, minimal: bytes, files: Sequence[CopiedFile]) -> bytes:
    """Return the coreos/miniso.dat by which ``full`` makes ``minimal``.

    Args:
        full: the full ISO.
        minimal: the minimal ISO.
        files: that both have, none empty, by ascending offset in the minimal ISO, at sectors' beginnings.

    Returns:
        the fields, without fill.
    """
    literal, end = b"", 0
    for file in files:
        assert end <= file.minimal
        content = minimal[file.minimal : file.minimal + file.length]
        assert content == full[file.full : file.full + file.length]
        literal += minimal[end : file.minimal]
        end = file.minimal + file.length
    literal += minimal[end:]
    table = [(file.minimal // SECTOR, file.full // SECTOR, file.length) for file in files]
    return pack_recipe(table, lzma.compress(literal, preset=0), sha256(minimal).digest())


def minimal_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a full ISO that its minimal one has."""
    return {path: content for path, content in files.items() if path not in {MINISO, ROOTFS}}


def files_in_both(full: bytes, minimal: bytes, paths: Iterable[str]) -> list[CopiedFile]:
    """Return the offsets of the files at ``paths`` in two ISOs, as miniso.dat lists them."""
    in_full, in_minimal = (read_iso9660(reader(image), len(image)) for image in (full, minimal))
    pairs = [(in_minimal.find_file(path), in_full.find_file(path)) for path in paths]
    copied = [CopiedFile(one.offset, other.offset, one.length) for one, other in pairs if one.length]
    return sorted(copied, key=lambda file: file.minimal)


def add_minimal_iso(
    files: Mapping[str, bytes], *, volume_id: str = VOLUME_ID, created: datetime | None = CREATED
) -> bytes:
    """Return a full ISO with ``files``, and the coreos/miniso.dat of their minimal ISO."""
    room = {**files, MINISO: bytes(ROOM)}
    full = build_iso(room, volume_id=volume_id, created=created)
    left = minimal_files(files)
    minimal = build_iso(left, volume_id=volume_id, created=created)
    packed = pack_minimal_iso(full, minimal, files_in_both(full, minimal, left))
    return build_iso({**room, MINISO: packed.ljust(ROOM, b"\0")}, volume_id=volume_id, created=created)


def live_iso_with_minimal(
    rootfs: bytes = b"rootfs data\n", *, volume_id: str = VOLUME_ID, created: datetime | None = CREATED
) -> bytes:
    """Return a live ISO of the CoreOS layout with a usable recipe."""
    return add_minimal_iso(live_files(rootfs=rootfs), volume_id=volume_id, created=created)
