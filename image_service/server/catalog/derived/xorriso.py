"""Changes an ISO with xorriso, reproducibly: the same changes of the same ISO make the same bytes.

All that would depend on a clock, a time zone, a user or an inode number is set here: volume and file dates,
owners, modes, the GUIDs of the partitions, and the order of added files.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from image_service.common.programs.interruptible import run_interruptibly
from image_service.common.programs.sandbox import ResourceLimits
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.base_file import BaseFile

MAX_SECONDS = 600.0  # a minimal ISO of 100 MiB takes half a second on a fast disk
MAX_CPU_SECONDS = 60  # a directory that contains itself would be read endlessly
MAX_MEMORY_BYTES = 1024 * 1024 * 1024  # of address space; some 200 MiB are used
_MAX_REASON_LENGTH = 500


@attrs.frozen
class Remastering:
    """Changes of an ISO.

    Args:
        removed: existing paths on it.
        added: files by their paths on it, which do not exist or are removed.
        date: UTC; of the volume and of all its files.
        guid: 32 hexadecimal digits, from which those of the partitions are made.
        max_bytes: limit of the result, whatever the ISO claims to contain.
    """

    removed: tuple[str, ...]
    added: Mapping[str, Path]
    date: datetime
    guid: str
    max_bytes: int


def remaster(source: BaseFile, target: Path, remastering: Remastering, interruption: Interruption) -> None:
    """Write a changed copy of an ISO, which boots like the ISO and has the same volume identifier.

    Args:
        source: the ISO.
        target: does not exist; invalid if this raises.
        interruption: stops this from another thread.

    Raises:
        Unavailable: xorriso is not installed, failed or took too long; contains its messages.
        Interrupted: the service stops.
    """
    interruption.raise_if_interrupted()
    with source.hold(), target.open("xb+") as output:
        result = run_interruptibly(
            list(_command(source, output.fileno(), remastering)),
            interruption,
            descriptors=[source.descriptor, output.fileno()],
            reads=[file.absolute() for file in remastering.added.values()],
            environment={"TZ": "UTC"},
            limits=ResourceLimits(
                file_bytes=remastering.max_bytes,
                cpu_seconds=MAX_CPU_SECONDS,
                address_space_bytes=MAX_MEMORY_BYTES,
            ),
            wall_seconds=MAX_SECONDS,
        )
    if result.status != 0:
        # The last line says only that xorriso gives up.
        lines = re.findall(r"(?:SORRY|MISHAP|FAILURE|FATAL) : ([ -~]+)", result.messages)
        reason = ("; ".join(lines) or result.last_message)[:_MAX_REASON_LENGTH] or "no message"
        raise Unavailable(f"xorriso exited with status {result.status}: {reason}")


def _command(source: BaseFile, output: int, remastering: Remastering) -> Iterator[str]:
    yield from ("xorriso", "-no_rc", "-report_about", "SORRY", "-abort_on", "SORRY")
    # By descriptor: these are the bytes that were hashed, even if the path was replaced.
    yield from ("-indev", f"stdio:/proc/self/fd/{source.descriptor}")
    yield from ("-outdev", f"stdio:/proc/self/fd/{output}")
    # Level 1: coreos-installer looks up such names. No second superblock for later sessions.
    yield from ("-compliance", "iso_9660_level=1:no_emul_toc", "-padding", "0")
    yield from ("-boot_image", "any", "replay")
    yield from ("-boot_image", "any", f"gpt_disk_guid={remastering.guid}")
    yield from ("-volume_date", "uuid", f"{remastering.date:%Y%m%d%H%M%S}00")
    yield from ("-volume_date", "all_file_dates", f"={int(remastering.date.timestamp())}")
    yield from ("-uid", "0", "-gid", "0", "-preparer_id", "IMAGE-SERVICE")
    yield from ("-rm", *remastering.removed, "--")
    for position, (path, file) in enumerate(remastering.added.items(), start=1):
        yield from ("-map", str(file.absolute()), path, "-chmod", "0444", path, "--")
        # Behind all existing files, in this order; by default inode numbers decide.
        yield from ("-find", path, "-exec", "sort_weight", str(-position), "--")
    for directory in sorted({str(PurePosixPath(path).parent) for path in remastering.added}):
        yield from ("-chmod", "0555", directory, "--")  # a new one has the mode of the disk's
    yield from ("-commit_eject", "none")
