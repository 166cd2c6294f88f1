"""Edits of ISOs: what one costs the process, before its first byte."""

from __future__ import annotations

import subprocess
import time
import tracemalloc
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import attrs

from bench.results import Target
from bench.servers import SERVICE
from bench.study import Figure
from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.families.live.editing import edit_medium
from image_service.core.families.live.family import MediumEdit
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.iso_edit.editor import IsoEditor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.stage import Stage

_DIRECTORIES = 3_000
_MENU = (
    "set timeout=-1\nmenuentry live {\n  linux /live/vmlinuz boot=live --- quiet\n  initrd /live/initrd\n}\n"
)
_EDIT = MediumEdit(
    files={"nocloud/user-data": b"#cloud-config\n"},
    initrd={"preseed.cfg": b"d-i a/b string c\n"},
    boot=BootEdit(append=("console=ttyS0",)),
)
_EDITS = 20  # of a measurement; the fastest counts


def study_edits(stage: Stage) -> Iterator[Figure]:
    """Measure edits of the base image, and of an ISO of 4 GiB with 3,000 directories."""
    large = _large_image(stage.directory, stage.effort.megabytes * 4)
    one, everything = "one file", "arguments, an initrd and a file"
    of_large = f"{everything}, {_DIRECTORIES:,} directories"
    for what, path, edit, milliseconds in (
        (f"{one} of a CoreOS ISO", stage.image, _put_one, 2),
        (f"{everything} of a CoreOS ISO", stage.image, _put_everything, 5),
        (of_large, large, _put_everything, 60),
    ):
        with closing(LocalFile.open(path)) as file:
            base = ExtentMap((FileExtent(file, 0, file.size),))
            values = [_measure(partial(edit, base)) for _ in range(stage.effort.rounds)]
        yield Figure(SERVICE, f"CPU of an edit: {what}", "ms", values, Target(at_most=milliseconds))
    with closing(_CountedFile.open(large)) as counted:
        memory = _peak(partial(_put_everything, ExtentMap((FileExtent(counted, 0, counted.size),))))
        for what, unit, value, most in (
            ("reads", "", len(counted.reads), 150),
            ("bytes read", "KiB", sum(counted.reads) / 1024, 1024),
            ("memory", "MiB", memory / 1024**2, 32),
        ):
            yield Figure(SERVICE, f"{what} of an edit: {of_large}", unit, [value], Target(at_most=most))


@attrs.frozen
class _CountedFile(LocalFile):
    """A file that keeps the lengths of what was read of it."""

    reads: list[int] = attrs.field(factory=list)

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return super().read_at(offset, length)


def _peak(work: Callable[[], object]) -> int:
    """Return the most bytes of memory that work needs at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _measure(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of work at its fastest: another process on the core makes it slower."""
    took = []
    for _ in range(_EDITS):
        started = time.process_time()
        work()
        took.append(time.process_time() - started)
    return min(took) * 1000


def _put_one(base: ExtentMap) -> ExtentMap:
    editor = IsoEditor(base)
    editor.put("nocloud/user-data", (Literal(b"#cloud-config\n"),))
    return editor.finish().apply(base)


def _put_everything(base: ExtentMap) -> ExtentMap:
    return edit_medium(LiveMedium(base), _EDIT).apply(base)


def _large_image(directory: Path, mebibytes: int) -> Path:
    """Return an ISO as live-build makes it, made by xorriso: trees of the image and of its partition."""
    image, tree = directory / f"directories-{mebibytes}.iso", directory / "tree"
    if image.exists():
        return image
    for number in range(_DIRECTORIES):
        package = tree / "pool" / f"{number % 30:02}" / f"package-with-a-long-name-{number:04}"
        package.mkdir(parents=True, exist_ok=True)
        (package / "a.deb").touch()
    for name, text in {"boot/grub/grub.cfg": _MENU, "live/vmlinuz": "k", "live/initrd": "i"}.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with (tree / "live" / "filesystem.squashfs").open("wb") as file:
        file.truncate(mebibytes << 20)
    partial_image = image.with_suffix(".partial")
    options = ("-quiet", "-iso-level", "3", "-r", "-J", "-partition_offset", "16", "-o", partial_image, tree)
    subprocess.run(["xorriso", "-as", "mkisofs", *options], check=True, capture_output=True)
    partial_image.rename(image)
    return image
