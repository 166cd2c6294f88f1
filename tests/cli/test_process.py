"""The console script as a process: signals, pipes, terminals, imports."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pytest

from image_service import __version__
from tests.cli.piping import COMMAND, TIMEOUT_SECONDS, pipe_with
from tests.core.formats.filesystems.iso_builder import build_live_iso, write_sparse_live_iso
from tests.forks import Fork, run
from tests.ports import free_port
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Sequence

# PYTHONUNBUFFERED empty: output is buffered, as for a user.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""}


CONFIG = '{"ignition": {"version": "3.3.0"}}\n'


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, output or b"", errors or b""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A base image that takes seconds to copy."""
    path = tmp_path / "in" / "large.iso"
    path.parent.mkdir()
    write_sparse_live_iso(path)
    return path


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_the_command_and_leaves_no_file(
    large: Path, out: Path, number: signal.Signals, status: int
) -> None:
    unignored = ["env", "--default-signal=HUP,INT"]  # also under nohup
    command = [*unignored, *COMMAND, "customize", str(large), "--karg-append", "a", "-o", str(out)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=PIPE) as process:
        while not list(out.parent.iterdir()) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(number)
        assert finish(process) == (status, b"", b"")
    assert list(out.parent.iterdir()) == []


MINIMAL = ("--minimal", "--rootfs-url", "http://192.0.2.1/rootfs.img")


def test_signal_during_a_derivation_ends_xorriso_and_leaves_no_file(
    base: Path, out: Path, tmp_path: Path
) -> None:
    """A fake xorriso runs during the signal."""
    base.write_bytes(build_live_iso())
    started = tmp_path / "started"
    environment = fake_xorriso(tmp_path / "bin", f"echo $$ >{started}.new; mv {started}.new {started}")
    command = [*COMMAND, "customize", str(base), *MINIMAL, "-o", str(out)]
    with subprocess.Popen(command, env=environment, stderr=PIPE) as process:
        while not started.exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert finish(process) == (143, b"", b"")
    assert list(out.parent.iterdir()) == []
    assert not Path(f"/proc/{started.read_text().strip()}").exists()


def fake_xorriso(directory: Path, script: str) -> dict[str, str]:
    """Make an xorriso that runs a script and then sleeps; return the environment that finds it.

    It runs without isolation, because the script acts on files of the test.
    """
    directory.mkdir()
    for name in ("bwrap", "unshare"):
        (directory / name).write_text("#!/bin/sh\nexit 1\n")
        (directory / name).chmod(0o755)
    (directory / "xorriso").write_text(f"#!/bin/sh\n{script}\nexec sleep 1000\n")
    (directory / "xorriso").chmod(0o755)
    return ENVIRONMENT | {"PATH": f"{directory}{os.pathsep}{ENVIRONMENT['PATH']}"}


def test_missing_xorriso_names_the_package(base: Path, out: Path) -> None:
    base.write_bytes(build_live_iso())
    command = [*COMMAND, "customize", str(base), *MINIMAL, "-o", str(out)]
    environment = ENVIRONMENT | {"PATH": str(out.parent)}
    ended = run(command, env=environment, timeout=TIMEOUT_SECONDS)
    told = "image-service: xorriso is not installed; install the package xorriso\n"
    assert (ended.returncode, ended.stderr) == (1, told)
    assert list(out.parent.iterdir()) == []


PRINTING = (
    "inspect BASE",
    "inspect BASE --json",
    "doctor http://127.0.0.1:1/a.iso",
    "completion zsh",
    "--help",
)


@pytest.mark.parametrize(
    "line",
    [
        "customize BASE --karg-append a -o -",
        "inspect BASE",
        "doctor http://127.0.0.1:1/a.iso",
        "--help",
        *map(soaked, ("inspect BASE --json", "completion zsh")),
    ],
)
def test_closed_pipe_exits_silently_with_141(base: Path, line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, *line.replace("BASE", str(base)).split()]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=writing, stderr=PIPE) as process:
        os.close(writing)
        assert finish(process) == (141, b"", b"")


@pytest.mark.parametrize("line", ["extract BASE rootfs -o -", *PRINTING])
def test_full_disk_behind_standard_output_is_an_error(base: Path, line: str) -> None:
    command = [*COMMAND, *line.replace("BASE", str(base)).split()]
    with (
        TemporaryFile() as printed,
        Path("/dev/full").open("wb") as full,
        Fork(command, env=ENVIRONMENT, stdout=full, stderr=printed) as process,
    ):
        status = process.wait(TIMEOUT_SECONDS)
        printed.seek(0)
        errors = printed.read()
    assert status == 1
    assert errors.startswith(b"image-service: ")
    assert errors.endswith(b"No space left on device\n")
    assert errors.count(b"\n") == 1


@pytest.mark.parametrize(
    ("line", "closed"),
    [
        *((line, ">&-") for line in ("extract BASE rootfs -o -", "inspect BASE", "--help")),
        ("extract BASE rootfs -o -", "<&- >&-"),
        *(soaked(line, ">&-") for line in PRINTING if line not in {"inspect BASE", "--help"}),
        *(soaked(line, "<&- >&-") for line in PRINTING),
    ],
)
def test_standard_output_that_is_not_open_is_an_error(base: Path, line: str, closed: str) -> None:
    words = [*COMMAND, *line.replace("BASE", str(base)).split()]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE) as process:
        status, _, errors = finish(process)
    assert status == 1
    assert errors.startswith(b"image-service: ")
    assert errors.endswith(b"Bad file descriptor\n")
    assert errors.count(b"\n") == 1


def test_standard_output_is_appended_to(base: Path, out: Path, live_iso: bytes) -> None:
    out.write_bytes(b"before")
    command = [*COMMAND, "customize", str(base), "--reset", "-o", "-"]
    with out.open("ab") as file, Fork(command, env=ENVIRONMENT, stdout=file) as process:
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert out.read_bytes() == b"before" + live_iso


def test_terminal_shows_the_progress(base: Path, out: Path) -> None:
    control, terminal = pty.openpty()
    command = [*COMMAND, "extract", str(base), "rootfs", "-o", str(out)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=DEVNULL, stdout=PIPE, stderr=terminal) as process:
        os.close(terminal)
        seen = read_all(control)
        assert finish(process)[:2] == (0, b"")
    assert b"] 100%  0.0 of 0.0 MiB " in seen
    assert seen.endswith(b" MiB/s    0:00 left\r\n")


def read_all(control: int) -> bytes:
    """Read from a terminal until its other end is closed."""
    seen = b""
    with suppress(OSError):  # EIO is how a terminal ends
        while data := os.read(control, 4096):
            seen += data
    os.close(control)
    return seen


def test_probe_imports_neither_twisted_nor_cryptography() -> None:
    """A container runs it each half a minute."""
    code = (
        "import sys; from image_service.cli import main;"
        " main(['health']);"
        " assert not {name.split('.')[0] for name in sys.modules} & {'twisted', 'cryptography', 'OpenSSL'}"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT | {"LISTEN_PORT": str(free_port())}, check=True
    )


def test_file_commands_do_not_import_twisted(base: Path, out: Path) -> None:
    """Importing Twisted takes longer than most commands."""
    code = (
        "import sys; from image_service.cli import main;"
        f" assert main(['inspect', {str(base)!r}]) == 0;"
        f" assert main(['customize', {str(base)!r}, '--reset', '-o', {str(out)!r}]) == 0;"
        f" assert main(['extract', {str(base)!r}, 'kernel', '-o', {str(out)!r}, '--force']) == 0;"
        " assert not {name for name in sys.modules if name.split('.')[0] in {'twisted', 'zope'}}"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stdout=PIPE, stderr=PIPE) as process:
        status, _, errors = finish(process)
    assert (status, errors) == (0, b"")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("inspect", "--help"), ("customize", "--help"), ("extract", "--help")]
)
def test_help_exits_with_0(arguments: Sequence[str]) -> None:
    ended = run([*COMMAND, *arguments], env=ENVIRONMENT, timeout=TIMEOUT_SECONDS)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: image-service")


@pytest.mark.parametrize(("words", "shown"), [((), "    serve  "), (("images",), "    list  ")])
def test_missing_command_exits_with_2_and_all_commands(words: tuple[str, ...], shown: str) -> None:
    ended = run([*COMMAND, *words], env=ENVIRONMENT, timeout=TIMEOUT_SECONDS)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("usage: image-service")
    assert shown in ended.stderr


def test_config_is_read_from_standard_input(base: Path, out: Path) -> None:
    command = [*COMMAND, "customize", str(base), "--ignition", "-", "-o", str(out)]
    assert run(command, env=ENVIRONMENT, text=CONFIG, timeout=TIMEOUT_SECONDS).returncode == 0
    show = [*COMMAND, "iso", "ignition", "show", str(out)]
    assert run(show, env=ENVIRONMENT, timeout=TIMEOUT_SECONDS).stdout == CONFIG


@pytest.mark.parametrize("is_pipe", [True, False], ids=["pipe", "file"])
def test_base_is_read_from_standard_input(base: Path, out: Path, live_iso: bytes, *, is_pipe: bool) -> None:
    command = [*COMMAND, "customize", "-", "--reset", "-o", str(out)]
    with pipe_with(live_iso) as pipe, base.open("rb") as file:
        stdin = pipe if is_pipe else file
        with Fork(command, env=ENVIRONMENT, stdin=stdin) as process:
            assert process.wait(TIMEOUT_SECONDS) == 0
    assert out.read_bytes() == live_iso


@pytest.mark.parametrize("arguments", ["inspect -", "customize base.iso --ignition - -o out.iso"])
def test_closed_standard_input_is_an_error(arguments: str) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, *arguments.split()]
    ended = subprocess.run(command, env=ENVIRONMENT, check=False, stderr=PIPE)
    assert (ended.returncode, ended.stderr) == (1, b"image-service: Bad file descriptor\n")


def test_base_on_standard_input_is_named_in_errors() -> None:
    ended = run([*COMMAND, "inspect", "-"], env=ENVIRONMENT, text="no ISO", timeout=TIMEOUT_SECONDS)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("image-service: -: ")


def test_version_is_that_of_the_package() -> None:
    ended = run([*COMMAND, "--version"], env=ENVIRONMENT, timeout=TIMEOUT_SECONDS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"image-service {__version__}\n", "")
