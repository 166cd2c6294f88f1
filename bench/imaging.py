"""The imaging toolkit beside the programs that a user would take instead, each by its command.

All write in the same directory; the files of both end with fsync.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pairs import Way, compare, run
from bench.servers import program
from image_service.toolkit.conversion.qemu_img import qemu_options
from image_service.toolkit.conversion.target import find_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stage import Stage
    from bench.study import Figure

_MIB = 1 << 20
_PIECE = 16 * _MIB  # of data, after which come holes
_TOOLKIT = "image-toolkit"
_COMMAND = (sys.executable, "-m", "image_service.toolkit")


def study_conversion(
    stage: Stage, *, source_format: str, target_format: str, mebibytes: int, digests: bool = False
) -> Iterator[Figure]:
    """Convert a disk, a quarter of which is data, beside qemu-img with the same settings.

    Args:
        stage: of the run.
        source_format: of the disk: raw or qcow2.
        target_format: of the result.
        mebibytes: of the disk.
        digests: the toolkit computes the SHA-256 of both files, and so does sha256sum after qemu-img.
    """
    qemu_img = program("qemu-img")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as name:
        directory = Path(name)
        source, out = directory / "source", directory / f"out.{target_format}"
        raw = source if source_format == "raw" else directory / "raw"
        _write_disk(raw, mebibytes * _MIB)
        if raw != source:
            run(qemu_img, "convert", "-f", "raw", "-O", source_format, raw, source)
            raw.unlink()
        convert = (*_COMMAND, "convert", source, out, "--format", target_format, "--scratch", directory)
        options = (*qemu_options(find_target(target_format)), "-p")

        def convert_by_qemu_img() -> None:
            run(qemu_img, "convert", "-f", source_format, *options, source, out)
            _sync(out)
            if digests:
                run("sha256sum", source, out)

        remove = partial(out.unlink, missing_ok=True)
        own = Way(_TOOLKIT, partial(run, *convert, *(() if digests else ("--no-digest",))), remove)
        peer = Way("qemu-img and sha256sum" if digests else "qemu-img", convert_by_qemu_img, remove)
        yield from compare(stage.effort.rounds, own, peer)


def _write_disk(path: Path, size: int) -> None:
    """Write a sparse disk, half of whose data is random."""
    chance = random.Random(0)  # noqa: S311 - equal disks in each run
    with path.open("wb") as file:
        file.truncate(size)
        for offset in range(0, size, 4 * _PIECE):
            file.seek(offset)
            file.write(chance.randbytes(_PIECE // 2) + b"a compressible text of 32 bytes." * (_PIECE // 64))
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
