"""The samples, to try the service without network: a live ISO and a metal disk with the layout of CoreOS.

They can be customized, and the ISO made minimal and inspected like a real one, but not booted: in place of
each large file there is a line of text, or a few bytes. ``tests/acceptance/make_sample.py`` makes them.
"""

from __future__ import annotations

import lzma
from importlib import resources
from typing import TYPE_CHECKING

from image_service.common.files.atomic import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE_VERSION = "sample"
SAMPLE_OPENSHIFT_VERSION = "4.17"  # from 4.18 on a ramdisk would need xorriso
SAMPLE_ARCHITECTURE = "x86_64"


def sample_iso() -> bytes:
    """Return the sample ISO."""
    return lzma.decompress(_packed("sample.iso.xz"))


def unpack_sample(data_dir: Path) -> Path:
    """Write the sample ISO into a directory unless it is there; return the file, which is complete."""
    return _write(data_dir / "sample.iso", sample_iso())


def unpack_sample_disk(data_dir: Path) -> Path:
    """Write the sample disk, compressed as streams have theirs, into a directory; see `unpack_sample`."""
    return _write(data_dir / "sample-disk.raw.xz", _packed("sample-disk.raw.xz"))


def _packed(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


def _write(target: Path, content: bytes) -> Path:
    if not target.is_file() or target.read_bytes() != content:
        with atomic_write(target) as file:
            file.write(content)
    return target
