"""The console script with pipes as its standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from threading import Thread
from typing import TYPE_CHECKING

from tests.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "image_service")
TIMEOUT_SECONDS = 100


@contextmanager
def pipe_with(content: bytes) -> Iterator[int]:
    """Yield the descriptor from which a content is read."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb") as file:
            file.write(content)

    writer = Thread(target=write)
    writer.start()
    try:
        yield reading
    finally:
        os.close(reading)
        writer.join()


def run_piped(*arguments: object, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command line that reads a content; return its status and what it printed."""
    command = [*COMMAND, *map(str, arguments)]
    reading, writing = os.pipe()
    with (
        pipe_with(content) as stdin,
        os.fdopen(reading, "rb") as stdout,
        TemporaryFile() as stderr,
        Fork(command, stdin=stdin, stdout=writing, stderr=stderr) as process,
    ):
        os.close(writing)
        output = stdout.read()
        status = process.wait(TIMEOUT_SECONDS)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, status, output, stderr.read())
