"""The sample base image: a live ISO of the CoreOS layout in a few KiB, to try the service without network.

It can be customized, made minimal and inspected like a real one, but not booted: kernel and initrd are one
line of text each, and the root file system is nearly empty. ``tests/acceptance/make_sample.py`` makes it.
"""

from __future__ import annotations

import lzma
import os
from contextlib import suppress
from importlib import resources
from pathlib import Path
from tempfile import NamedTemporaryFile

SAMPLE_VERSION = "sample"
SAMPLE_OPENSHIFT_VERSION = "4.17"  # from 4.18 on a ramdisk would need xorriso
SAMPLE_ARCHITECTURE = "x86_64"


def unpack_sample(data_dir: Path) -> Path:
    """Write the sample ISO into a directory unless it is there; return the file, which is complete."""
    target = data_dir / "sample.iso"
    content = lzma.decompress(resources.files(__package__).joinpath("sample.iso.xz").read_bytes())
    if not _holds(target, content):
        _write(target, content)
    return target


def _holds(path: Path, content: bytes) -> bool:
    with suppress(FileNotFoundError):
        return path.read_bytes() == content
    return False


def _write(target: Path, content: bytes) -> None:
    """Replace a file atomically; a reader of the old one keeps reading it."""
    with NamedTemporaryFile(dir=target.parent, prefix=f"{target.name}.", delete=False) as temporary:
        try:
            temporary.write(content)
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(target)
        except BaseException:
            Path(temporary.name).unlink()
            raise
