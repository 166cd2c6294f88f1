"""Changing an ISO with xorriso, so that the same changes of the same ISO make the same bytes anywhere.

What would let a clock, a time zone, a user or an inode number into the image is set here: volume and file
dates, owners, modes, the GUIDs of the partitions, and the order of what is added.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from image_service.concurrency.sandbox import ResourceLimits, run_sandboxed
from image_service.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption
    from image_service.files.base_file import BaseFile

MAX_SECONDS = 600.0  # a minimal ISO of 100 MiB takes half a second where the disk is not slow
MAX_CPU_SECONDS = 60  # a directory that contains itself would be read for ever
MAX_MEMORY_BYTES = 1024 * 1024 * 1024  # of address space, of which some 200 MiB are used
_TOLD_CHARACTERS = 500


@attrs.frozen
class Remastering:
    """What becomes of an ISO.

    Args:
        removed: paths on it, all of which are there.
        added: paths on it where nothing is, or nothing any more, with the files to put there.
        date: UTC; of the volume and of all its files.
        guid: 32 hexadecimal digits, from which those of the partitions are made.
        max_bytes: the result is no larger, whatever the ISO claims to hold.
    """

    removed: tuple[str, ...]
    added: Mapping[str, Path]
    date: datetime
    guid: str
    max_bytes: int


def remaster(source: BaseFile, target: Path, remastering: Remastering, interruption: Interruption) -> None:
    """Write a changed copy of an ISO, which boots as the ISO does, with the same volume identifier.

    Args:
        source: the ISO.
        target: is written; what is there when this raises is worth nothing.
        remastering: the changes.
        interruption: ends it from another thread.

    Raises:
        Unavailable: xorriso is missing, failed or took too long; says what it said.
        Interrupted: the service stops.
    """
    command = [*_start(source, target), *_changes(remastering), "-commit_eject", "none"]
    with source.hold(), open(os.memfd_create("xorriso"), "w+b") as told:  # noqa: PTH123 - it has no path
        status = run_sandboxed(
            command,
            interruption,
            descriptors=[source.descriptor],
            stderr=told.fileno(),
            environment={"TZ": "UTC"},
            limits=ResourceLimits(remastering.max_bytes, MAX_CPU_SECONDS, MAX_MEMORY_BYTES, MAX_SECONDS),
        )
        if status != 0:
            told.seek(0)
            raise Unavailable(f"xorriso ended with status {status}: {_reason(told.read())}")


def _start(source: BaseFile, target: Path) -> Iterator[str]:
    yield from ("xorriso", "-no_rc", "-report_about", "SORRY", "-abort_on", "SORRY")
    # By descriptor: these are the bytes that were hashed, whatever has come to lie at the path.
    yield from ("-indev", f"stdio:/proc/self/fd/{source.descriptor}", "-outdev", f"stdio:{target.absolute()}")
    # Level 1, for coreos-installer looks files up by such names; no second superblock for later sessions.
    yield from ("-compliance", "iso_9660_level=1:no_emul_toc", "-padding", "0")
    yield from ("-boot_image", "any", "replay")


def _changes(remastering: Remastering) -> Iterator[str]:
    yield from ("-boot_image", "any", f"gpt_disk_guid={remastering.guid}")
    yield from ("-volume_date", "uuid", f"{remastering.date:%Y%m%d%H%M%S}00")
    yield from ("-volume_date", "all_file_dates", f"={int(remastering.date.timestamp())}")
    yield from ("-uid", "0", "-gid", "0", "-preparer_id", "IMAGE-SERVICE")
    yield from ("-rm", *remastering.removed, "--")
    for position, (path, file) in enumerate(remastering.added.items(), start=1):
        yield from ("-map", str(file.absolute()), path, "-chmod", "0444", path, "--")
        # Behind all that is there, each in its turn; left alone, inode numbers would decide.
        yield from ("-find", path, "-exec", "sort_weight", str(-position), "--")
    for directory in sorted({str(PurePosixPath(path).parent) for path in remastering.added}):
        yield from ("-chmod", "0555", directory, "--")  # a new one has got the mode of the disk's


def _reason(told: bytes) -> str:
    """What went wrong, of all that xorriso told: its last words say only that it gives up."""
    lines = re.findall(r"(?:SORRY|MISHAP|FAILURE|FATAL) : ([ -~]+)", told.decode("latin-1"))
    return "; ".join(lines)[:_TOLD_CHARACTERS] or "it told nothing"
