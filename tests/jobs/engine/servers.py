"""An engine of the tests' own, which they may kill."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.jobs.engine.engine_child import find_program, server_command
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class EngineServer:
    """A process that can be killed and started again.

    Args:
        command: that starts it.
        port: on which it listens.
    """

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._command = command
        self.address = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running_engine(directory: Path) -> Iterator[EngineServer]:
    """Run an engine on SQLite, as the role's child runs."""
    port = free_port()
    server = EngineServer(server_command(find_program(), port, directory / "temporal.sqlite"), port)
    try:
        yield server
    finally:
        server.kill()
