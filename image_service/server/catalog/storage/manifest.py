"""The manifest of ``DATA_DIR``, ``image-service.json``: only files that it lists may be removed.

::

    {"version": 1,
     "images": {"rhcos-full-iso-….iso": {
         "referred": 1763756256,                        seconds since 1970: when a configuration last had it
         "refused": "…",                                why the download is set aside; or null
         "sha256": "…",                                 of the image as it was downloaded; or null
         "files": {"rhcos-full-iso-….iso": {"size": 1, "mtime_ns": 2},
                   ".rhcos-full-iso-….iso.part": null}}}}

A listed file was made here if it still has this size and time. Hidden files and sidecars have null: they
change all the time, and nothing else writes them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.files.atomic import atomic_write

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 1


@attrs.frozen
class FileIdentity:
    """What identifies a file, even after it was restored from a backup."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return the identity of a file."""
        return cls(status.st_size, status.st_mtime_ns)


@attrs.define
class ManifestEntry:
    """One image, with all its files. The attributes are the members of the JSON object.

    Args:
        referred: when a configuration last had it, in seconds since the epoch.
        refused: why the download is set aside; None: it is not.
        sha256: of the image as it was downloaded; None: not known.
        files: by name in the directory; None: made here, whatever its identity.
    """

    referred: float
    refused: str | None = None
    files: dict[str, FileIdentity | None] = attrs.field(factory=dict)
    sha256: str | None = None


def read_manifest(path: Path) -> dict[str, ManifestEntry]:
    """Return the entries by image; none if the manifest is absent or unreadable: then nothing is removed."""
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            return {}
        return {image: _parse_entry(members) for image, members in document["images"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_manifest(path: Path, entries: Mapping[str, ManifestEntry]) -> None:
    """Replace the manifest."""
    images = {image: attrs.asdict(entry) for image, entry in entries.items()}
    with atomic_write(path) as file:
        file.write(json.dumps({"version": VERSION, "images": images}, indent=1).encode())


def _parse_entry(members: Mapping[str, Any]) -> ManifestEntry:
    refused, sha256 = members["refused"], members.get("sha256")  # which older releases do not write
    entry = ManifestEntry(float(members["referred"]), None if refused is None else str(refused))
    entry.sha256 = None if sha256 is None else str(sha256)
    for name, identity in members["files"].items():
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(name)  # it would lead out of the directory
        known = None if identity is None else FileIdentity(int(identity["size"]), int(identity["mtime_ns"]))
        entry.files[name] = known
    return entry
