"""The inventory of ``DATA_DIR`` for the command line: changes nothing and waits for nothing."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile
from image_service.core.families.coreos.build_names import ARCHITECTURE, VERSION
from image_service.server.catalog.lifecycle.status import BaseImageState, ImageStatus
from image_service.server.catalog.storage.data_dir import MANIFEST
from image_service.server.catalog.storage.digest import Sidecar
from image_service.server.catalog.storage.manifest import read_manifest
from image_service.settings.os_images import ISO_TYPES, OsImage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from image_service.server.catalog.storage.manifest import ManifestEntry

_NAME = re.compile(f"rhcos-({'|'.join(ISO_TYPES)})-({VERSION.pattern})-({ARCHITECTURE.pattern})\\.iso")


def list_stored_images(directory: Path, configured: Iterable[OsImage]) -> tuple[ImageStatus, ...]:
    """Return the status of each configured image, then of each other one that is stored.

    Ready is an image that was verified and has not changed since, judged by a sample; waiting is one still to
    be downloaded or verified, or remote. OpenShift versions of images that are not configured are unknown.

    Args:
        directory: ``DATA_DIR``; may be absent.
    """
    entries = {entry.file_name: entry for entry in configured}
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    manifest = read_manifest(directory / MANIFEST)
    for name in sorted(names | manifest.keys()):
        if match := _NAME.fullmatch(name):
            entry = OsImage(match[2], match[3], match[1], ("",), "")
            entries.setdefault(entry.file_name, entry)
    return tuple(_status(directory, entry, manifest.get(entry.file_name)) for entry in entries.values())


def _status(directory: Path, entry: OsImage, listed: ManifestEntry | None) -> ImageStatus:
    if entry.remote:
        return ImageStatus(entry, BaseImageState.WAITING, "stays at its origin; --admin asks a service")
    path, partial = entry.local_path or directory / entry.file_name, directory / f".{entry.file_name}.part"
    if path.is_file():
        with closing(LocalFile.open(path)) as file:
            digest = Sidecar(directory / f"{entry.file_name}.json", file).get_digest("sha256")
        state, reason = (BaseImageState.READY, "") if digest else (BaseImageState.WAITING, "not verified")
        return ImageStatus(entry, state, reason, file.size, file.size, file.size, digest)
    if partial.is_file():
        return ImageStatus(entry, BaseImageState.WAITING, "partly downloaded", partial.stat().st_size)
    if listed and listed.refused:
        return ImageStatus(entry, BaseImageState.REFUSED, listed.refused)
    return ImageStatus(entry, BaseImageState.WAITING, "not downloaded")
