"""Runs ``image-service worker`` as a process, with the real toolkit or one that waits for the test."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.forks import Fork
from tests.jobs.worker.job_server import TOKEN, GivenJob, JobServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

ROOT = Path(__file__).resolve().parents[3]
_END_SECONDS = 300
_REAL = f"""\
#!/bin/sh
exec "{sys.executable}" -m image_service.toolkit "$@"
"""
# Copies its input when GATE exists; TOOLKIT_STATUS is its exit status, and TOOLKIT_CALLS gets its arguments.
# The shell reads its first lines, because the interpreter's path may have blanks.
_HELD = f"""\
#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
'''
import hashlib, json, os, shutil, sys, time
from pathlib import Path

if sys.argv[1] == "--version":
    print("image-toolkit 0.held")
    sys.exit(0)
here = Path(sys.argv[0]).parent
with (here / "calls").open("a") as calls:
    print(os.getpid(), *sys.argv[1:], file=calls)
done = 0
while not (here / "gate").exists():
    done += 1
    print(json.dumps({{"phase": "hold", "done": done, "total": 1000}}), file=sys.stderr, flush=True)
    time.sleep(0.02)
status = int((here / "gate").read_text())
source, out = Path(sys.argv[2]), Path(sys.argv[3])
if status:
    print(json.dumps({{"output": None, "error": {{"reason": f"{{source}} is wrong"}}}}))
    sys.exit(status)
shutil.copy(source, out)
digest = hashlib.sha256(out.read_bytes()).hexdigest()
print(json.dumps({{"output": {{"sha256": digest}}, "error": None}}))
"""


@attrs.frozen
class HeldToolkit:
    """A program in the toolkit's place, which copies its input when the gate is open."""

    program: Path

    @classmethod
    def make(cls, directory: Path) -> HeldToolkit:
        """Make the program in a new directory."""
        directory.mkdir()
        return cls(_write_program(directory / "image-toolkit", _HELD))

    def open(self, status: int = 0) -> None:
        """Let calls end with a status."""
        written = self.program.parent / "gate.new"
        written.write_text(str(status))
        written.rename(self.program.parent / "gate")  # a call sees the file with its text

    def calls(self) -> list[list[str]]:
        """Return process id and arguments of the calls."""
        path = self.program.parent / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_until_ended(self) -> None:
        """Wait until no call runs; the processes need not be children of this one."""
        _wait_until(lambda: not any(Path(f"/proc/{call[0]}").exists() for call in self.calls()))


def real_toolkit(directory: Path) -> Path:
    """Make a program that runs the toolkit of this checkout."""
    return _write_program(directory / "real-toolkit", _REAL)


def _write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@attrs.frozen
class WorkerProcess:
    """A worker.

    Args:
        scratch: directory that it gets.
        log: file of its standard error.
    """

    process: Fork
    scratch: Path
    log: Path

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(_END_SECONDS)

    def wait_for_line(self, text: str) -> None:
        """Wait for a line of the worker."""
        _wait_until(lambda: text in self.log.read_text())


@attrs.frozen
class WorkerSite:
    """The inputs of workers.

    Args:
        server: what ``--server`` gets.
        directory: of their scratch, token and log.
    """

    jobs: JobServer
    server: str
    toolkit: HeldToolkit
    directory: Path

    def worker(self, *options: str | Path, token: str = TOKEN) -> AbstractContextManager[WorkerProcess]:
        """Run a worker with the held toolkit; see `running_worker`."""
        return running_worker(self.server, self.directory, self.toolkit.program, *options, token=token)


def copy_job(content: bytes, name: str = "image") -> GivenJob:
    """Return a job for the held toolkit: its artifact has the content of its input."""
    arguments = {"input": name, "input_format": "raw", "format": "raw", "output": "disk.raw", "size": None}
    return GivenJob("convert", arguments, {name: content})


@contextmanager
def running_worker(
    server: str,
    directory: Path,
    toolkit: Path,
    *options: str | Path,
    environment: Mapping[str, str] | None = None,
    token: str = TOKEN,
) -> Iterator[WorkerProcess]:
    """Run a worker during the block; then SIGTERM must end it with 0, without a file in its scratch."""
    scratch, token_file, log = directory / "scratch", directory / "token", directory / "worker.log"
    scratch.mkdir(exist_ok=True)
    token_file.write_text(f"{token}\n")
    command = [
        *(sys.executable, "-m", "image_service.cli", "worker", f"--server={server}"),
        *(f"--scratch-dir={scratch}", f"--token-file={token_file}", "--arch=x86_64", *map(str, options)),
        *(() if any(str(option).startswith("--heartbeat") for option in options) else ("--heartbeat=0.1",)),
    ]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables |= {"TOOLKIT": str(toolkit), "PYTHONPATH": str(ROOT), **(environment or {})}
    with log.open("ab") as errors:
        process = Fork(command, env=variables, stderr=errors)
    worker = WorkerProcess(process, scratch, log)
    try:
        yield worker
        if process.poll() is None:
            assert worker.end() == 0, log.read_text()
            assert list(scratch.iterdir()) == []
        assert TOKEN not in log.read_text()
    finally:
        process.kill()
        process.wait()


def _wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
