"""Calls of image-toolkit as real processes that a signal ends in each phase; and many calls in a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.programs.memory_cgroup import parent_cgroups
from image_service.toolkit.commands import main
from tests.acceptance.clients import needs_client
from tests.toolkit.coreos_disk import build_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

MIB = 1024 * 1024
TOOLKIT = [sys.executable, "-m", "image_service.toolkit"]
ROOT = Path(__file__).resolve().parents[2]
CALLS = {
    "qcow2": ["convert", "disk.raw", "out", "--force", "--format", "qcow2"],
    "vhd": ["convert", "disk.raw", "out", "--force", "--format", "vhd"],
    "ova": ["convert", "disk.raw", "out", "--force", "--format", "ova"],
    "customize": ["customize", "disk.raw", "out", "--ignition", "config.ign", "--platform", "aws"],
}


@attrs.frozen
class EndedCall:
    """A call that got a signal, or ended before.

    Args:
        status: of the process, as a shell shows it.
        report: its JSON; empty after SIGKILL.
        phases: in order.
    """

    status: int
    report: dict[str, object]
    phases: list[str]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a disk, a config, an older output and a scratch directory."""
    for client in ("qemu-img", "debugfs", "mkfs.ext4", "sfdisk", "mformat"):
        needs_client(client)
    place = tmp_path / "place"
    place.mkdir()
    with build_disk(tmp_path).rename(place / "disk.raw").open("r+b") as disk:
        disk.seek(-6 * MIB, os.SEEK_END)
        disk.write(os.urandom(4 * MIB))
    (place / "config.ign").write_text('{"ignition": {"version": "3.4.0"}}')
    (place / "out").write_bytes(b"before")
    (place / "tiny.raw").write_bytes(bytes(512))
    (place / "scratch").mkdir()
    return place


def run_toolkit(
    place: Path, arguments: list[str], number: signal.Signals | None = None, phase: str = "", line: int = 0
) -> EndedCall:
    """Run a call in a directory, and send it a signal when it has printed a number of lines of a phase."""
    options = ["--scratch", "scratch", "--progress=json", "--json"]
    with subprocess.Popen(
        [*TOOLKIT, *arguments, *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert process.stdout
        phases: list[str] = []
        lines = 0
        for text in process.stderr:
            found = json.loads(text)["phase"]
            if found not in phases:
                phases.append(found)
            if number and found == phase:
                if lines == line:
                    process.send_signal(number)
                lines += 1
        output = process.stdout.read()
        status = process.wait()
    return EndedCall(status if status >= 0 else 128 - status, json.loads(output) if output else {}, phases)


def names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def wait_for_no_process(place: Path) -> None:
    """Fail the test if a program of a call in a directory goes on."""
    until = time.monotonic() + 60
    while running := list(programs_in(place)):
        assert time.monotonic() < until, running
        time.sleep(0.02)


def programs_in(place: Path) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").readlink().is_relative_to(place):
                yield process.joinpath("cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue


@pytest.mark.parametrize(
    "name",
    [
        "qcow2",
        "customize",
        pytest.param("vhd", marks=pytest.mark.soak),
        pytest.param("ova", marks=pytest.mark.soak),
    ],
)
def test_call_that_is_ended_in_a_phase_leaves_nothing(place: Path, name: str) -> None:
    """After SIGKILL, the next call leaves nothing."""
    phases = run_toolkit(place, CALLS[name]).phases
    before = names(place)
    ended = []
    for phase in phases:
        for number, line in ((signal.SIGTERM, 1), (signal.SIGKILL, 0)):
            (place / "out").write_bytes(b"before")
            call = run_toolkit(place, [*CALLS[name], "--io-rate", "64M"], number, phase, line)
            wait_for_no_process(place)
            if call.status == 0:  # it had ended before the signal came
                continue
            ended.append(number)
            assert call.status == 128 + number
            assert (place / "out").read_bytes() == b"before"
            if number == signal.SIGTERM:
                assert call.report["error"] == {"reason": "ended by signal 15"}
            else:
                assert run_toolkit(place, ["convert", "tiny.raw", "out", "--force"]).status == 0
            assert names(place) == before
    assert {*ended} == {signal.SIGTERM, signal.SIGKILL}


def descriptors() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except FileNotFoundError:  # that of the directory itself
            continue
    return sorted(path for path in found if path.startswith("/"))


def children() -> set[str]:
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread of another test has ended
            found.update(path.read_text().split())
    return found


def groups() -> list[Path]:
    """Return the control groups that this process has made."""
    pattern = f"image-toolkit-{os.getpid()}-*"
    return [path for parent in parent_cgroups() for path in parent.directory.glob(pattern)]


def convert_often(place: Path, count: int) -> None:
    """Convert in this process; neither a descriptor, a process nor a file may be left."""
    (place / "disk.raw").write_bytes(os.urandom(MIB) + bytes(MIB))
    before = None
    for number in range(count):
        target = ("qcow2", "vmdk", "vhd", "vhdx", "ova", "raw")[number % 6]
        arguments = ["convert", str(place / "disk.raw"), str(place / "out"), "--force", "--format", target]
        status = main([*arguments, "--scratch", str(place / "scratch"), "--progress=none", "--memory=1G"])
        assert status == 0
        if before is None:
            before = (descriptors(), children(), names(place))
    assert (descriptors(), children(), names(place)) == before
    assert groups() == []
    assert before[2] == ["config.ign", "disk.raw", "out", "scratch", "tiny.raw"]


def test_twenty_conversions_leave_nothing(place: Path) -> None:
    convert_often(place, 20)


@pytest.mark.soak
def test_two_hundred_conversions_leave_nothing(place: Path) -> None:
    convert_often(place, 200)
