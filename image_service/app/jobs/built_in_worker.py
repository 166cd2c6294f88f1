"""The worker that the jobs role starts: a child process, which serves all tenants."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from image_service.concurrency.supervised_process import SupervisedProcess
from image_service.files.private_files import create_private

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.concurrency.parts import PartsStack
    from image_service.concurrency.supervised_process import ChildProcess

WORKER_DIRECTORY = "worker"
"""Of its token, scratch and cache, in ``DATA_DIR``."""
_STOP_SECONDS = 15.0


def start_worker(
    parts: PartsStack, data_dir: Path, socket: Path, *, slots: int, operator_token: str
) -> SupervisedProcess:
    """Start the worker, and stop it with the parts.

    Raises:
        OSError: its directory cannot be written.
    """
    directory = data_dir / WORKER_DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    token_file = directory / "token"
    create_private(token_file)
    token_file.write_text(operator_token)
    command = _command(directory, token_file, socket, slots)

    def spawn(process: ChildProcess) -> None:
        # Its log goes where ours goes, and it has the same AWS_* for uploads.
        parts.reactor.spawnProcess(
            process, command[0], command, dict(os.environ), childFDs={0: "w", 1: 1, 2: 2}
        )

    worker = SupervisedProcess(parts.reactor, "the worker", spawn, _STOP_SECONDS)
    worker.start()
    parts.push_async_callback(worker.stop)
    return worker


def _command(directory: Path, token_file: Path, socket: Path, slots: int) -> list[str]:
    """Return the command line of the worker; it ends with this process, also with one that is killed."""
    setpriv = shutil.which("setpriv")
    return [
        *([setpriv, "--pdeathsig=TERM"] if setpriv else []),
        *(sys.executable, "-m", "image_service.cli", "worker"),
        *("--server", f"unix:{socket}", "--token-file", str(token_file), "--tenant", "ANY"),
        *("--slots", str(slots), "--scratch-dir", str(directory / "scratch")),
        *("--cache-dir", str(directory / "cache")),
    ]
