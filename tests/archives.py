"""Unpacks tar archives with every version of Python."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def unpack(path: Path, directory: Path) -> None:
    """Unpack an archive, compressed or not, into a directory."""
    with tarfile.open(path) as archive:
        # Python before 3.11.4 has no filters, such as that of Debian 12; later ones warn if none is set.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)  # noqa: S202 - archives of these tests
