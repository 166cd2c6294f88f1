"""Mastering of ISO images with xorriso, as reproducible as it can be made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.acceptance.clients import needs_client
from tests.coreos.iso_builder import CREATED

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def _write_tree(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for path in (root, *root.rglob("*")):  # SOURCE_DATE_EPOCH leaves out the directories
        os.utime(path, (_DATE_SECONDS, _DATE_SECONDS))
