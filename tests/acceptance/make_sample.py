"""Make the sample ISO of standalone mode anew: ``python -m tests.acceptance.make_sample``."""

from __future__ import annotations

import lzma
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.acceptance.media import master
from tests.coreos.iso_builder import live_files

PACKED = Path(__file__).parents[2] / "image_service" / "standalone" / "sample.iso.xz"
VOLUME_ID = "fedora-coreos-sample"
_KERNEL_ARGUMENTS = f"coreos.liveiso={VOLUME_ID} ignition.firstboot ignition.platform.id=metal"


def make_sample() -> bytes:
    """Make the sample: the layout of a live ISO, with one line of text for each large file of a real one."""
    with TemporaryDirectory() as directory:
        target = Path(directory) / "sample.iso"
        master(target, live_files(kernel_arguments=_KERNEL_ARGUMENTS), VOLUME_ID, "-no-pad")
        return target.read_bytes()


if __name__ == "__main__":
    PACKED.write_bytes(lzma.compress(make_sample(), preset=9 | lzma.PRESET_EXTREME))
