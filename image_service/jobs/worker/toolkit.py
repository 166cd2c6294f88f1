"""Runs ``image-toolkit`` as a child process; its JSON is the interface."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs

from image_service.common.programs.environment import OBJECT_STORE, REGISTRY, environment_of
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from image_service.common.concurrency.interruption import Interruption
    from image_service.jobs.worker.calls import ToolkitCall

_NAME = "image-toolkit"
_PUBLISHES = "publish"
_PROBE_SECONDS = 60
_WATCH_SECONDS = 0.2
_END_SECONDS = 10.0  # in which it removes its files
_REPORT_BYTES = 4 * 1024 * 1024
_NO_REPORT = 1  # the status of a fault of the program
# The programs that make an image, and how each prints its version.
_PROGRAMS = {
    "customize": {"debugfs": "-V", "e2fsck": "-V", "qemu-io": "--version"},
    "convert": {"qemu-img": "--version"},
    "run": {"qemu-img": "--version"},
}


@attrs.frozen
class ToolkitOutcome:
    """The result of a call of the toolkit.

    Args:
        status: exit status, as its manual page lists them.
        reason: of its failure; "": it succeeded.
        output: the result in its report.
    """

    status: int
    reason: str
    output: Mapping[str, Any]


@attrs.frozen
class Toolkit:
    """The program.

    Args:
        version: as it prints it.
    """

    program: Path
    version: str

    @classmethod
    def find(cls, name: str | None) -> Toolkit:
        """Return the program with a name, by default the one beside this one; it is started once.

        Raises:
            ConfigurationError: it is not there, or does not start.
        """
        beside = Path(sys.executable).with_name(_NAME)
        found = shutil.which(name or (str(beside) if beside.exists() else _NAME))
        if found is None:
            raise ConfigurationError(
                f"there is no program {name or beside}; install the package image-service-jobs, or the wheel"
            )
        version = _first_line([found, "--version"])
        if not version:
            raise ConfigurationError(f"{found} --version fails")
        return cls(Path(found).absolute(), version.removeprefix(f"{_NAME} "))

    def describe(self, verb: str) -> dict[str, Any]:
        """Return the versions of the toolkit and of the programs with which a verb makes an image."""
        programs = {
            name: version
            for name, option in _PROGRAMS.get(verb, {}).items()
            if (found := shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"))
            and (version := _first_line([found, option]))
        }
        return {"toolkit": self.version, "programs": programs}

    def run(
        self,
        call: ToolkitCall,
        directory: Path,
        scratch_bytes: int,
        interruption: Interruption,
        on_progress: Callable[[dict[str, Any]], None],
    ) -> ToolkitOutcome:
        """Run a verb to its end; none of its processes stays.

        Args:
            call: verb and arguments.
            directory: for its files, also temporary ones.
            scratch_bytes: that it may write.
            on_progress: gets ``phase``, ``done`` and ``total``.
        """
        limits = (f"--scratch={directory}", f"--scratch-bytes={scratch_bytes}")
        program = (*_dies_with_us(), "nice", str(self.program))  # heartbeats and a server beside it go first
        command = [*program, *call.words, *limits, "--json", "--progress=json"]
        with (
            (directory / "report.json").open("w+b") as report,
            (directory / "progress").open("w+b") as progress,
            _running(command, directory, _environment_of(call), report, progress) as process,
        ):
            lines = _LineReader(progress)
            while process.poll() is None:
                interruption.raise_if_interrupted()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_WATCH_SECONDS)  # returns within 50 ms of its end
                for line in lines.read():
                    with suppress(ValueError):
                        on_progress(json.loads(line))
            report.seek(0)
            return _read_report(process.returncode, report.read(_REPORT_BYTES), str(directory))


def _environment_of(call: ToolkitCall) -> dict[str, str]:
    """Return the variables of a call: credentials only if it uploads."""
    if call.words[0] != _PUBLISHES:
        return environment_of(os.environ)
    region = {"AWS_REGION": call.region, "AWS_DEFAULT_REGION": call.region} if call.region else {}
    return {**environment_of(os.environ, *OBJECT_STORE, *REGISTRY), **region}


class _LineReader:
    """Reads whole lines of a file that grows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0

    def read(self) -> list[bytes]:
        """Return the lines since the last call."""
        data = os.pread(self._file.fileno(), _REPORT_BYTES, self._position)
        end = data.rfind(b"\n") + 1
        self._position += end
        return data[:end].splitlines()


@contextmanager
def _running(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    stdout: BinaryIO,
    stderr: BinaryIO,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process group during the block; if it is still there at the end, SIGTERM, and then SIGKILL."""
    with subprocess.Popen(  # noqa: S603 - the arguments are ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=directory,
        env=environment,
        process_group=0,  # a terminal's Ctrl-C is for this process, which ends the others
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _dies_with_us() -> list[str]:
    """Return words that let a program end when this process is killed, where util-linux has them."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig=TERM"] if setpriv else []


def _read_report(status: int, text: bytes, directory: str) -> ToolkitOutcome:
    """Return the result in a report; no reason names the private directory."""
    try:
        report = json.loads(text)
        error, output = report["error"], report["output"]
    except (ValueError, KeyError, TypeError):
        return ToolkitOutcome(
            status or _NO_REPORT, f"{_NAME} ended with status {status}, without a report", {}
        )
    reason = error["reason"].replace(f"{directory}/", "") if error else ""
    return ToolkitOutcome(status, reason, output or {})


def _first_line(command: Sequence[str]) -> str:
    """Return the first line that a program prints; "" if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - programs of this machine
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_of(os.environ),
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.decode(errors="replace").splitlines()
    return lines[0].strip() if lines and not done.returncode else ""
