"""Build the sample ISO and the sample disk: ``python -m tests.acceptance.make_sample``."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from image_service.core.families.coreos.family import SAMPLE_VOLUME_ID
from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import needs_client
from tests.acceptance.media import master_live
from tests.core.formats.filesystems.iso_builder import live_files
from tests.toolkit.coreos_disk import build_disk

_DIRECTORY = Path(__file__).parents[2] / "image_service/server/standalone"
PACKED, PACKED_DISK = _DIRECTORY / "sample.iso.xz", _DIRECTORY / "sample-disk.raw.xz"
_KERNEL_ARGUMENTS = f"coreos.liveiso={SAMPLE_VOLUME_ID} ignition.firstboot ignition.platform.id=metal"

# Not compressed, since that is another matter with every release of the tool's libraries.
_REPRODUCIBLY = (
    "-all-root -all-time 0 -mkfs-time 0 -no-xattrs -noI -noD -noF -noX -noappend -no-progress -quiet"
)


def make_sample() -> bytes:
    """Return the sample ISO: the layout of a live ISO, with one line of text in place of each large file."""
    with TemporaryDirectory() as directory:
        target = Path(directory) / "sample.iso"
        files = live_files(kernel_arguments=_KERNEL_ARGUMENTS, rootfs=pack_rootfs(Path(directory)))
        master_live(target, files, SAMPLE_VOLUME_ID, "-no-pad")
        return target.read_bytes()


def make_sample_disk() -> bytes:
    """Return the sample disk; its file systems have other UUIDs and times in each build."""
    with TemporaryDirectory() as directory:
        return build_disk(Path(directory)).read_bytes()


def _pack(content: bytes) -> bytes:
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def pack_rootfs(directory: Path) -> bytes:
    """Return a squashfs in a cpio archive that contains only nmstatectl."""
    tree, image = directory / "tree", directory / "root.squashfs"
    tool = tree / "usr" / "bin" / "nmstatectl"
    tool.parent.mkdir(parents=True)
    tool.write_bytes(b"#!/bin/sh\n")
    tool.chmod(0o755)
    subprocess.run([needs_client("mksquashfs"), tree, image, *_REPRODUCIBLY.split()], check=True)
    return write_archive([Member("root.squashfs", image.read_bytes(), 0o100644)])


if __name__ == "__main__":
    PACKED.write_bytes(_pack(make_sample()))
    PACKED_DISK.write_bytes(_pack(make_sample_disk()))
