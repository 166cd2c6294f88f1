"""Runs ``qemu-img convert``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.errors import ConversionFailed, FormatError, UnsafeImage
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.conversion.vmdk_descriptor import normalize_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from image_service.toolkit.conversion.target import Target
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace

_PERCENT = re.compile(rb"\(([0-9]+)\.([0-9]{2})/100%\)")
_READ_FAULT = re.compile(r"error while reading at byte ([0-9]+)")
_CHECKED_BYTES = 65536
_HUNDREDTHS = 10_000  # of a percent, of the whole
_LAYOUT_BYTES = 128 << 20  # by which a sparse file may be larger than the disk: VHDX aligns its areas


def qemu_options(target: Target) -> Sequence[str]:
    """Return the options of ``qemu-img convert`` for a form."""
    return [
        *("-O", target.driver),
        *(("-o", ",".join(target.options)) if target.options else ()),
        *(() if target.is_ordered else ("-W",)),
        *(("-c",) if target.is_compressed else ()),
    ]


def write_disk_at(image: DiskImage, path: Path, offset: int, workspace: Workspace) -> None:
    """Write the disk of an image to a file of zeros, from an offset on; raises as `run_qemu_img`."""
    size = image.disk.virtual_size
    name = str(path.absolute()).replace(",", ",,")
    target = f"driver=raw,offset={offset},size={size},file.driver=file,file.filename={name}"
    options = ["-n", "--target-is-zero", "--target-image-opts"]
    _convert("wrap", image, [*options, image.source_for_qemu, target], path, workspace)


def run_qemu_img(image: DiskImage, out: Path, target: Target, workspace: Workspace) -> None:
    """Write the disk of an image to a new file.

    QEMU guesses nothing and opens no other file: the source names the driver of each layer, and the
    destination is an absolute path, in which a colon makes no protocol.

    Raises:
        UnsafeImage: the image is damaged.
        ConversionFailed, TimedOut, NoRoom: as `Workspace.run`.
    """
    words = [*qemu_options(target), image.source_for_qemu, str(out.absolute())]
    _convert("convert", image, words, out, workspace)
    if target.format is DiskFormat.VMDK:
        normalize_descriptor(out)


def _convert(phase: str, image: DiskImage, words: Sequence[str], out: Path, workspace: Workspace) -> None:
    """Run ``qemu-img convert`` as a phase of the progress."""
    try:
        _run(phase, image, words, out, workspace)
    except ConversionFailed as error:
        _check_source(image, error, workspace)
        raise


def _check_source(image: DiskImage, error: ConversionFailed, workspace: Workspace) -> None:
    """Raise UnsafeImage if the image cannot be read to its end: it is damaged, and qemu-img did not fail."""
    place = _READ_FAULT.search(error.detail)
    start = int(place[1]) // _CHECKED_BYTES * _CHECKED_BYTES if place else 0
    offset = start
    try:
        for first, length in image.disk.data_extents():
            for offset in range(max(first, start), first + length, _CHECKED_BYTES):
                count = min(_CHECKED_BYTES, first + length - offset)
                workspace.pace(count)
                image.disk.read_at(offset, count)
    except FormatError as damage:
        raise UnsafeImage(
            f"{image.path}: its disk cannot be read from byte {offset} on: {damage.detail}"
        ) from error


def _run(phase: str, image: DiskImage, words: Sequence[str], out: Path, workspace: Workspace) -> None:
    rate = workspace.limits.io_bytes_per_second
    size = image.disk.virtual_size
    workspace.progress.start(phase, size)
    workspace.run(
        ["qemu-img", "convert", "-p", *(("-r", str(rate)) if rate else ()), *words],
        descriptors=[image.descriptor],
        writes=[out],
        on_output=_share_reader(lambda share: workspace.progress.set(size * share // _HUNDREDTHS)),
        file_bytes=size + size // 64 + _LAYOUT_BYTES,
    )
    workspace.progress.finish()


def _share_reader(on_share: Callable[[int], None]) -> Callable[[bytes], None]:
    """Return the receiver of the output of ``-p``; `on_share` gets hundredths of a percent, some twice."""
    pending = b""

    def receive(output: bytes) -> None:
        nonlocal pending
        pending += output
        for whole, hundredths in _PERCENT.findall(pending):
            on_share(int(whole) * 100 + int(hundredths))
        pending = pending[-32:]  # longer than a share, of which the end may come later

    return receive
