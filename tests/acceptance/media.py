"""Reproducible ISO images by xorriso."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from image_service.core.formats.iso9660.volume import read_iso9660
from tests.acceptance.clients import needs_client
from tests.core.families.coreos.miniso_builder import (
    MINISO,
    ROOM,
    files_in_both,
    minimal_files,
    pack_minimal_iso,
)
from tests.core.formats.filesystems.iso_builder import CREATED
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.families.coreos.minimal_iso import CopiedFile

_DATE_SECONDS = int(CREATED.timestamp())


def master(target: Path, files: Mapping[str, bytes], volume_id: str, *options: str) -> None:
    """Write an ISO image with Rock Ridge names and level 1 names, which are those that readers look up.

    The same files give the same bytes: no clock, time zone, owner or xorriso version gets into them.

    Args:
        target: the image; replaced if it exists.
        files: content by path.
        volume_id: volume identifier.
        options: more of ``xorriso -as mkisofs``, such as those that make it bootable.
    """
    xorriso = [needs_client("xorriso"), "-as", "mkisofs", "-quiet", "-iso-level", "1", "-r"]
    identity = ["-V", volume_id, "-preparer", "image-service", "-appid", "image-service"]
    environment = os.environ | {"TZ": "UTC", "SOURCE_DATE_EPOCH": str(_DATE_SECONDS)}
    with TemporaryDirectory() as tree:
        _write_tree(Path(tree), files)
        command = [*xorriso, *identity, *options, "-o", str(target), tree]
        subprocess.run(command, env=environment, check=True, capture_output=True)


def master_live(target: Path, files: Mapping[str, bytes], volume_id: str, *options: str) -> None:
    """Write a live ISO that tells in ``coreos/miniso.dat`` how to make its minimal one.

    Args:
        target: the image; replaced if it exists.
        files: content by path, the root file system among them.
        volume_id: volume identifier.
        options: as for `master`.
    """
    master(target, {**files, MINISO: bytes(ROOM)}, volume_id, *options)
    minimal = target.with_suffix(".minimal")
    master(minimal, minimal_files(files), volume_id, *options)
    full, smaller = target.read_bytes(), minimal.read_bytes()
    minimal.unlink()
    paths = [path for path, content in minimal_files(files).items() if content]
    copied = [file for file in files_in_both(full, smaller, paths) if _is_same(file, full, smaller)]
    packed = pack_minimal_iso(full, smaller, copied)
    assert len(packed) <= ROOM
    offset = read_iso9660(reader(full), len(full)).find_file(MINISO).offset
    target.write_bytes(full[:offset] + packed + full[offset + len(packed) :])


def _is_same(file: CopiedFile, full: bytes, minimal: bytes) -> bool:
    """Return False for a boot loader that contains its own address in the image."""
    mine, other = full[file.full :], minimal[file.minimal :]
    return mine[: file.length] == other[: file.length]


def _write_tree(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for path in (root, *root.rglob("*")):  # SOURCE_DATE_EPOCH leaves out the directories
        os.utime(path, (_DATE_SECONDS, _DATE_SECONDS))
