"""What of ``DATA_DIR`` was made here: ``image-service.json``, the only licence to remove anything.

::

    {"version": 1,
     "images": {"rhcos-full-iso-….iso": {
         "referred": 1763756256,                        seconds since 1970: when a configuration last had it
         "refused": "…",                                why what was fetched is set aside; or null
         "files": {"rhcos-full-iso-….iso": {"size": 1, "mtime_ns": 2},
                   ".rhcos-full-iso-….iso.part": null}}}}

A file is ours if it is named here and is still the one that was made: of this size and time. Hidden files
and sidecars have null, for these change all the time and nobody else writes them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.files.atomic import atomic_write

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

VERSION = 1


@attrs.frozen
class Identity:
    """By what a file is known again, also after it was restored from a backup.

    Args:
        size: bytes.
        mtime_ns: of its last modification, since 1970.
    """

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Take that of a file."""
        return cls(status.st_size, status.st_mtime_ns)


@attrs.define
class Entry:
    """One image, with all that belongs to it.

    Args:
        referred: when a configuration last had it, in seconds since 1970.
        refused: why what was fetched is set aside; None: nothing is.
        files: names in the directory; None: ours whatever it is.
    """

    referred: float
    refused: str | None = None
    files: dict[str, Identity | None] = attrs.field(factory=dict)


def read_manifest(path: Path) -> dict[str, Entry]:
    """Read which images were made here.

    Args:
        path: the manifest.

    Returns:
        the entries by image; none where there is no manifest, or one that cannot be understood: what is
        there then counts as somebody else's, and stays.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            return {}
        return dict(_entries(document["images"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_manifest(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write which images were made here, all or nothing.

    Raises:
        OSError: it cannot be written.
    """
    images = {image: attrs.asdict(entry) for image, entry in entries.items()}
    with atomic_write(path) as file:
        file.write(json.dumps({"version": VERSION, "images": images}, indent=1).encode())


def _entries(images: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, Entry]]:
    for image, members in images.items():
        referred, refused, files = members["referred"], members["refused"], members["files"]
        if not isinstance(referred, int | float) or not isinstance(files, dict):
            raise TypeError
        yield image, Entry(float(referred), None if refused is None else str(refused), dict(_files(files)))


def _files(files: Mapping[str, Mapping[str, int] | None]) -> Iterator[tuple[str, Identity | None]]:
    for name, identity in files.items():
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(name)  # it would lead out of the directory
        yield name, None if identity is None else Identity(int(identity["size"]), int(identity["mtime_ns"]))
