"""Disks to convert, conversions by the Python API, and two judges: our readers, and qemu-img."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import attrs

from image_service.toolkit.conversion.convert import Conversion, convert
from image_service.toolkit.conversion.ovf import Appliance
from image_service.toolkit.conversion.target import OVA, Target, find_target
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace
from tests.acceptance.clients import needs_client, run_client
from tests.archives import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIB = 1 << 20
SIZE = 37 * MIB + 7 * 512  # a multiple neither of a cylinder (63, 255 * 63 sectors) nor of a MiB
_DRIVERS = {"vhd": "vpc"}  # qemu's names, where they are others
_READ_BYTES = MIB


@attrs.frozen
class Form:
    """A format with its options, by one name for test ids."""

    name: str
    subformat: str | None = None
    compress: bool = False

    def __str__(self) -> str:
        return "-".join(filter(None, (self.name, self.subformat, "compressed" if self.compress else None)))

    @property
    def target(self) -> Target:
        """The form as the toolkit has it."""
        return find_target(self.name, self.subformat, compress=self.compress)


FORMS = (
    Form("raw"),
    Form("qcow2"),
    Form("qcow2", compress=True),
    Form("vmdk", "streamOptimized"),
    Form("vmdk", "monolithicSparse"),
    Form("vhd", "fixed"),
    Form("vhd", "dynamic"),
    Form("vhdx", "dynamic"),
    Form("vhdx", "fixed"),
    Form(OVA),
)


def write_disk(path: Path, size: int = SIZE, pieces: Mapping[int, int] | None = None) -> Path:
    """Write a sparse raw disk with random bytes, which compress badly, and its very last sector.

    Args:
        path: of the disk.
        size: bytes.
        pieces: lengths of random data by offset; None: some that no unit of a format divides.
    """
    chance = random.Random(size)  # noqa: S311 - the same in each run
    with path.open("wb") as file:
        file.truncate(size)
        for offset, length in (pieces or {0: 700_001, 9 * MIB + 1536: 4608, size - 512: 512}).items():
            file.seek(offset)
            file.write(chance.randbytes(length))
    return path


def convert_file(  # noqa: PLR0913 - properties of a conversion
    source: Path,
    out: Path,
    form: Form,
    *,
    declared: str | None = None,
    digests: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a file with a scratch directory beside the result; the tests need qemu-img."""
    needs_client("qemu-img")
    scratch = out.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    silent = Progress(lambda _phase, _done, _total: None)
    appliance = Appliance(out.stem) if form.name == OVA else None
    with (
        Workspace(scratch, limits or Limits(), progress or silent) as workspace,
        open_image(source, declared) as image,
    ):
        return convert(image, out, form.target, workspace, digests=digests, appliance=appliance)


def sha256_of_disk(path: Path, declared: str) -> str:
    """Return the SHA-256 of an image's disk, as our reader reads it."""
    digest = hashlib.sha256()
    with open_image(path, declared) as image:
        for offset in range(0, image.disk.virtual_size, _READ_BYTES):
            length = min(_READ_BYTES, image.disk.virtual_size - offset)
            data = image.disk.read_at(offset, length)
            assert len(data) == length
            digest.update(data)
    return digest.hexdigest()


def compare_by_qemu(raw: Path, path: Path, form: Form) -> None:
    """Fail the test unless qemu-img reads the same disk, of the same size, from an image as from a raw one.

    The size of a VHD is taken from the footer, not from the geometry that rounds it.
    """
    driver = _DRIVERS.get(form.name, form.name)
    if form.name == OVA:
        unpack(path, path.parent)
        path, driver = path.with_name(f"{path.stem}-disk1.vmdk"), "vmdk"
    size = ",force_size_calc=current_size" if driver == "vpc" else ""
    images = [
        f"driver=raw,file.driver=file,file.filename={raw}",
        f"driver={driver}{size},file.driver=file,file.filename={path}",
    ]
    assert run_client("qemu-img", "compare", "--image-opts", *images) == b"Images are identical.\n"
