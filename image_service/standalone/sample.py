"""The sample base image: a live ISO of the CoreOS layout in a few KiB, to try the service without network.

It can be customized, made minimal and inspected like a real one, but not booted: kernel and initrd are one
line of text each, and the root file system is nearly empty. ``tests/acceptance/make_sample.py`` makes it.
"""

from __future__ import annotations

import lzma
from importlib import resources
from typing import TYPE_CHECKING

from image_service.files.atomic import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE_VERSION = "sample"
SAMPLE_OPENSHIFT_VERSION = "4.17"  # from 4.18 on a ramdisk would need xorriso
SAMPLE_ARCHITECTURE = "x86_64"


def unpack_sample(data_dir: Path) -> Path:
    """Write the sample ISO into a directory unless it is there; return the file, which is complete."""
    target = data_dir / "sample.iso"
    content = lzma.decompress(resources.files(__package__).joinpath("sample.iso.xz").read_bytes())
    if not target.is_file() or target.read_bytes() != content:
        with atomic_write(target) as file:
            file.write(content)
    return target
