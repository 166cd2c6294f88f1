"""The worker that the jobs role starts: a child process, which serves all tenants."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from image_service.common.concurrency.supervised_process import SupervisedProcess
from image_service.common.files.modes import make_private_directory
from image_service.common.files.private_files import create_private
from image_service.common.programs.environment import OBJECT_STORE, REGISTRY, environment_of
from image_service.common.programs.isolation import MAKE_ISOLATED, find_isolation
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.concurrency.supervised_process import ChildProcess
    from image_service.settings.jobs.jobs import JobsSettings

WORKER_DIRECTORY = "worker"
"""The directory of its token, scratch and cache, in ``DATA_DIR``."""
WORKER_SCRATCH = f"{WORKER_DIRECTORY}/scratch"
"""The directory of its jobs' files, in ``DATA_DIR``."""
_CACHE = "cache"
_STOP_SECONDS = 15.0
_MOST_BEAT_SECONDS = 15.0
_BEATS = 3  # in the time in which an attempt may be silent


def start_worker(
    parts: PartsStack, data_dir: Path, settings: JobsSettings, *, slots: int, worker_token: str
) -> SupervisedProcess:
    """Start the worker, and stop it with the parts.

    Args:
        settings: have a Unix socket.

    Raises:
        ConfigurationError: nothing isolates programs here, as is required.
        OSError: its directory cannot be written.
    """
    if settings.require_isolation and find_isolation() == "none":
        raise ConfigurationError(f"JOBS_REQUIRE_ISOLATION: {MAKE_ISOLATED}")
    directory = data_dir / WORKER_DIRECTORY
    for path in (directory, data_dir / WORKER_SCRATCH, directory / _CACHE):
        make_private_directory(path)
    token_file = directory / "token"
    create_private(token_file)
    token_file.write_text(worker_token)
    beat_seconds = min(_MOST_BEAT_SECONDS, settings.heartbeat_seconds / _BEATS)
    scratch_bytes = settings.worker_scratch_bytes
    nice = shutil.which("nice")
    command = [
        *((nice, "-n", str(settings.worker_nice)) if nice and settings.worker_nice else ()),
        *_command(data_dir, token_file, settings.socket_path),
        *("--slots", str(slots), "--heartbeat", f"{beat_seconds:g}"),
        *(("--scratch-bytes", str(scratch_bytes)) if scratch_bytes else ()),
    ]

    def spawn(process: ChildProcess) -> None:
        environment = environment_of(os.environ, *OBJECT_STORE, *REGISTRY, "TOOLKIT", "BUNDLE_KEY_FILE")
        # It has the standard error of this process.
        parts.reactor.spawnProcess(process, command[0], command, environment, childFDs={0: "w", 1: 1, 2: 2})

    worker = SupervisedProcess(parts.reactor, "the worker", spawn, _STOP_SECONDS)
    worker.start()
    parts.push_async_callback(worker.stop)
    return worker


def _command(data_dir: Path, token_file: Path, socket: Path | None) -> list[str]:
    """Return the command line of the worker.

    It ends with this process, also if that is killed. It has a session of its own, because a terminal's
    Ctrl-C would end it before this process does.
    """
    setpriv = shutil.which("setpriv")
    return [
        *([setpriv, "--pdeathsig=TERM", "setsid"] if setpriv else []),
        *(sys.executable, "-m", "image_service.cli", "worker"),
        *("--server", f"unix:{socket}", "--token-file", str(token_file), "--tenant", "ANY"),
        *("--scratch-dir", str(data_dir / WORKER_SCRATCH)),
        *("--cache-dir", str(data_dir / WORKER_DIRECTORY / _CACHE)),
    ]
