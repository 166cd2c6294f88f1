"""What a directory holds of base images, for whoever looks from outside: nothing is changed or waited for."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

from image_service.catalog.lifecycle.status import BaseImageState, ImageStatus
from image_service.catalog.storage.data_dir import MANIFEST
from image_service.catalog.storage.digest import Sidecar
from image_service.catalog.storage.manifest import read_manifest
from image_service.coreos.names import ARCHITECTURE, VERSION
from image_service.files.base_file import BaseFile
from image_service.settings.os_images import TYPES, OsImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_NAME = re.compile(f"rhcos-({'|'.join(TYPES)})-({VERSION.pattern})-({ARCHITECTURE.pattern})\\.iso")


def list_stored_images(directory: Path, configured: Iterable[OsImage]) -> tuple[ImageStatus, ...]:
    """Tell what there is of each image.

    Args:
        directory: ``DATA_DIR``; need not be there.
        configured: the images that are wanted.

    Returns:
        their states, and behind them those of images that are there all the same: ready is what was verified
        and has not changed since, as far as a sample tells; waiting is what will be fetched or verified.

    Raises:
        OSError: a file cannot be read.
    """
    entries = {entry.file_name: entry for entry in configured}
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    for entry in _adopted(sorted(names | read_manifest(directory / MANIFEST).keys())):
        entries.setdefault(entry.file_name, entry)
    return tuple(_status(directory, entry) for entry in entries.values())


def _adopted(names: Iterable[str]) -> Iterator[OsImage]:
    """What images of such names are; whom they are for is not known."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            yield OsImage(match[2], match[3], match[1], ("",), "")


def _status(directory: Path, entry: OsImage) -> ImageStatus:
    path, partial = entry.local_path or directory / entry.file_name, directory / f".{entry.file_name}.part"
    refused = (manifest := read_manifest(directory / MANIFEST).get(entry.file_name)) and manifest.refused
    if path.is_file():
        return _status_of_file(entry, path, directory / f"{entry.file_name}.json")
    if partial.is_file():
        return ImageStatus(entry, BaseImageState.WAITING, "fetched in part", partial.stat().st_size)
    if refused:
        return ImageStatus(entry, BaseImageState.REFUSED, refused)
    return ImageStatus(entry, BaseImageState.WAITING, "not there")


def _status_of_file(entry: OsImage, path: Path, sidecar: Path) -> ImageStatus:
    with closing(BaseFile.open(path)) as file:
        digest = Sidecar(sidecar, file).get("sha256")
    state, reason = (BaseImageState.READY, "") if digest else (BaseImageState.WAITING, "not verified")
    return ImageStatus(entry, state, reason, file.size, file.size, file.size, digest)
