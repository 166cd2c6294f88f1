"""The imaging toolkit beside the programs that it runs: ``python -m bench.imaging``.

Each row is measured in pairs, one after the other and in alternating order, so that other load of the machine
affects both; the ratio of a pair counts. Both write in the same directory and end with fsync. The
toolkit works in this process, from opening the image to the rename of the result. What a call
of `image-toolkit` costs beside that is the row of a disk of 1 MiB. A CoreOS disk of 10 GiB is customized
beside a bare copy of it, which a program that works on a copy needs at least, and beside guestfish.

    python -m bench.imaging --directory /var/tmp --gib 16 --pairs 7
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.toolkit.conversion.convert import convert
from image_service.toolkit.conversion.qemu_img import qemu_options
from image_service.toolkit.conversion.target import Target, find_target
from image_service.toolkit.customization.customize import customize_disk, customize_in_place
from image_service.toolkit.customization.disk_customization import DiskCustomization
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GIB, MIB = 1 << 30, 1 << 20
_PIECE = 16 * MIB  # of data, after which come holes
_CHANCE = random.Random(0)  # noqa: S311 - equal disks in each run
_CONFIG = b'{"ignition": {"version": "3.4.0"}}'
_CUSTOMIZATION = DiskCustomization(_CONFIG, "metal", ("console=ttyS1,115200n8",))


@attrs.frozen
class Row:
    """One comparison.

    Args:
        name: of the work.
        toolkit: does it by the toolkit.
        peer: does it by the program that the toolkit runs, with the same settings.
        data_bytes: that are converted; throughput is in these.
        prepare: is called before each of both, and not measured.
    """

    name: str
    toolkit: Callable[[], None]
    peer: Callable[[], None]
    data_bytes: int
    prepare: Callable[[], None] = lambda: None


@attrs.frozen
class Measurement:
    """The medians of a row: seconds of both, and the toolkit's throughput divided by its peer's."""

    row: Row
    toolkit_seconds: float
    peer_seconds: float
    ratios: Sequence[float]

    def __str__(self) -> str:
        rate = self.row.data_bytes / self.toolkit_seconds / MIB
        return (
            f"| {self.row.name} | {self.peer_seconds:.2f} s | {self.toolkit_seconds:.2f} s | {rate:.0f} MiB/s"
            f" | {statistics.median(self.ratios):.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f}) |"
        )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="of the images")
    parser.add_argument("--gib", type=int, default=16, help="of the disk, a quarter of which is data")
    parser.add_argument("--pairs", type=int, default=7, help="that each row is measured in")
    parser.add_argument("--coreos-disk", type=Path, metavar="FILE", help="raw disk to customize copies of")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.pairs} pairs\n")
        print("| | alone | toolkit | | ratio of throughputs (median, range) |\n|---|---|---|---|---|")
        rows = convert_rows(Path(directory), options.gib * GIB)
        if options.coreos_disk:
            rows = chain(rows, customize_rows(Path(directory), options.coreos_disk))
        for row in rows:
            print(measure(row, options.pairs), flush=True)


def measure(row: Row, pairs: int) -> Measurement:
    """Measure a row, after one pair that warms caches up."""
    _seconds(row, row.toolkit)
    _seconds(row, row.peer)
    toolkit: list[float] = []
    peer: list[float] = []
    for pair in range(pairs):
        order = ((row.toolkit, toolkit), (row.peer, peer))
        for work, seconds in order if pair % 2 else reversed(order):
            seconds.append(_seconds(row, work))
    ratios = [theirs / ours for ours, theirs in zip(toolkit, peer, strict=True)]
    return Measurement(row, statistics.median(toolkit), statistics.median(peer), ratios)


def _seconds(row: Row, work: Callable[[], None]) -> float:
    row.prepare()
    started_at = time.monotonic()
    work()
    return time.monotonic() - started_at


def convert_rows(directory: Path, size: int) -> Iterator[Row]:
    """Yield conversions beside bare qemu-img; one with digests beside the same without; a small one."""
    raw, qcow2, small, out = (directory / name for name in ("disk.raw", "disk.qcow2", "small.raw", "out"))
    data_bytes = _write_disk(raw, size)
    _run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2)
    for source, name, target in (
        (raw, "raw to qcow2", find_target("qcow2")),
        (qcow2, "qcow2 to raw", find_target("raw")),
        (qcow2, "qcow2 to fixed VHD", find_target("vhd")),
        (qcow2, "qcow2 to VHDX", find_target("vhdx")),
        (qcow2, "qcow2 to streamOptimized VMDK", find_target("vmdk")),
    ):
        form = name.partition(" ")[0]
        yield Row(name, _toolkit(source, out, target), _qemu_img(source, form, out, target), data_bytes)
    target = find_target("raw")
    yield Row(
        "qcow2 to raw with digests, beside the toolkit without",
        _toolkit(qcow2, out, target, digests=True),
        _toolkit(qcow2, out, target),
        data_bytes,
    )
    small.write_bytes(bytes(MIB))
    command = (sys.executable, "-m", "image_service.toolkit", "convert", small, out, "--format", "raw")
    yield Row(
        "a disk of 1 MiB, by the command",
        lambda: _run(*command, "--scratch", directory),
        _qemu_img(small, "raw", out, target),
        MIB,
    )


def customize_rows(directory: Path, source: Path) -> Iterator[Row]:
    """Yield customizations of a raw CoreOS disk, which is only read."""
    data_bytes = source.stat().st_blocks * 512
    disk, out, config = (directory / name for name in ("customized.raw", "out", "config.ign"))
    config.write_bytes(_CONFIG)

    def copy(target: Path) -> None:
        target.unlink(missing_ok=True)
        _run("cp", "--sparse=always", source, target)
        _sync(target)

    def prepare() -> None:
        copy(disk)

    def in_place() -> None:
        with _workspace(directory) as workspace:
            customize_in_place(disk, _CUSTOMIZATION, workspace)

    def into_copy() -> None:
        out.unlink(missing_ok=True)
        with _workspace(directory) as workspace:
            customize_disk(source, out, _CUSTOMIZATION, workspace, digest=False)

    yield Row("customize a copy, beside cp", into_copy, lambda: copy(out), data_bytes)
    yield Row("customize in place, beside cp", in_place, lambda: copy(out), data_bytes, prepare)
    if not shutil.which("guestfish"):
        print("| customize in place, beside guestfish, which is not installed | | | | |")
        return
    upload = ("mkdir-p", "/ignition", ":", "upload", config, "/ignition/config.ign")
    command = ("guestfish", "--format=raw", "-a", disk, "-m", "/dev/sda3", *upload)
    yield Row(
        "customize in place, beside guestfish that writes the config",
        in_place,
        lambda: _run(*command),
        data_bytes,
        prepare,
    )


def _write_disk(path: Path, size: int) -> int:
    """Write a sparse disk, half of whose data is random, and return the bytes of its data."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset in range(0, size, 4 * _PIECE):
            file.seek(offset)
            file.write(_CHANCE.randbytes(_PIECE // 2) + b"a compressible text of 32 bytes." * (_PIECE // 64))
        os.fsync(file.fileno())
    return path.stat().st_blocks * 512


def _toolkit(source: Path, out: Path, target: Target, *, digests: bool = False) -> Callable[[], None]:
    def work() -> None:
        out.unlink(missing_ok=True)
        with _workspace(out.parent) as workspace, open_image(source) as image:
            convert(image, out, target, workspace, digests=digests)

    return work


def _qemu_img(source: Path, form: str, out: Path, target: Target) -> Callable[[], None]:
    settings = (*qemu_options(target), "-p")

    def work() -> None:
        out.unlink(missing_ok=True)
        _run("qemu-img", "convert", "-f", form, *settings, source, out)
        _sync(out)

    return work


def _workspace(scratch: Path) -> Workspace:
    return Workspace(scratch, Limits(), Progress(lambda _phase, _done, _total: None))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
