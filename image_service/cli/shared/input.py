"""Files that a command reads: by name, from a pipe, or standard input."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from image_service.core.base_file import BaseFile

STANDARD_INPUT = "-"
_STANDARD_INPUTS = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def parse_input_name(name: str) -> str:
    """Return the name of a file; - for each name of standard input."""
    return STANDARD_INPUT if os.path.normpath(name) in _STANDARD_INPUTS else name


def read_input(name: str) -> bytes:
    """Return the content of a file; of standard input for -."""
    with standard_input() if name == STANDARD_INPUT else Path(name).open("rb") as file:
        return file.read()


def standard_input() -> BinaryIO:
    """Return standard input, whose descriptor stays open; raise OSError if there is none."""
    return open(0, "rb", closefd=False)


@contextmanager
def open_input(name: str) -> Iterator[BaseFile]:
    """Open a file for reading at any offset; a pipe is copied to a temporary file first.

    Args:
        name: - is standard input; a shell's <(program) is a pipe in /dev/fd. A FIFO is refused: to open it
            could wait forever.

    Raises:
        BaseImageError: it is neither a regular file nor such a pipe.
        OSError: it cannot be read.
    """
    is_standard = name == STANDARD_INPUT
    mode = (os.fstat(0) if is_standard else os.stat(name)).st_mode  # noqa: PTH116 - as the line after it
    if not stat.S_ISREG(mode) if is_standard else stat.S_ISFIFO(mode) and name.startswith("/dev/fd/"):
        with standard_input() if is_standard else Path(name).open("rb") as pipe, TemporaryFile() as copy:
            shutil.copyfileobj(pipe, copy)
            copy.flush()
            yield LocalFile(copy.fileno(), copy.tell(), name)
        return
    try:
        file = LocalFile.open(Path(_STANDARD_INPUTS[0] if is_standard else name))
    except BaseImageError as error:
        raise BaseImageError(f"{name} {error.detail}") from None
    with closing(file):
        yield file
