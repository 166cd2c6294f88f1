"""The arguments of every verb that works on images: limits and progress."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.command_line.messages import tell
from image_service.common.command_line.values import parse_bytes, parse_directory, parse_seconds
from image_service.toolkit.disks.opening import INPUT_FORMATS
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress, bar_progress, json_progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    import argparse


def _parse_whole_seconds(text: str) -> int:
    return math.ceil(parse_seconds(text))


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of every verb that works on images, for `open_workspace`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, on failure too")
    parser.add_argument(
        "--progress",
        choices=("bar", "json", "none"),
        default="bar",
        help="on standard error: a bar if it is a terminal, or JSON lines",
    )
    parser.add_argument(
        "--scratch",
        type=parse_directory,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="directory for temporary files (default: TMPDIR, /tmp)",
    )
    parser.add_argument(
        "--scratch-bytes", type=parse_bytes, metavar="N", help="limit of all that is written, output too"
    )
    parser.add_argument(
        "--cpu", type=_parse_whole_seconds, metavar="SECONDS", help="limit of the CPU time of each program"
    )
    parser.add_argument(
        "--io-rate", type=parse_bytes, metavar="N", help="limit of bytes a second, for images"
    )
    parser.add_argument(
        "--memory", type=parse_bytes, metavar="N", help="limit of a program's resident memory"
    )
    parser.add_argument("--timeout", type=parse_seconds, metavar="SECONDS", help="limit of the elapsed time")


def add_input_format(parser: argparse.ArgumentParser) -> None:
    """Declare the format of an image FILE, for `open_image`."""
    parser.add_argument(
        "--input-format",
        "--from",
        choices=INPUT_FORMATS,
        help="format of FILE; another content is refused (default: it is detected)",
    )


def open_workspace(options: argparse.Namespace) -> Workspace:
    """Return the workspace that the common arguments describe."""
    limits = Limits(
        scratch_bytes=options.scratch_bytes,
        cpu_seconds=options.cpu,
        io_bytes_per_second=options.io_rate,
        memory_bytes=options.memory,
        wall_seconds=options.timeout,
    )
    progress = {"bar": bar_progress, "json": json_progress}.get(options.progress, _no_progress)()
    return Workspace(options.scratch, limits, progress, _ignore if options.progress == "json" else _warn)


def _warn(line: str) -> None:
    tell(f"image-toolkit: {line}", "warn")


def _ignore(_line: str) -> None:
    """Standard error has nothing but the progress."""


def _no_progress() -> Progress:
    return Progress(lambda _phase, _done, _total: None)
