"""Programs within limits: each limit is hit once, and nothing of a program is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.common.programs import memory_cgroup, sandbox
from image_service.core.errors import ConversionFailed, MissingDependency, NoRoom, TimedOut
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace
from tests.acceptance.clients import needs_client
from tests.toolkit.workspace.calls import MIB, workspace_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.core.errors import ImageServiceError

MARK = f"31415{os.getpid():08}"  # seconds of sleep, by which the tests find processes
ALLOCATE = ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=100000"]


def processes(mark: str) -> list[str]:
    """Return the commands of the processes whose arguments contain a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(path.parent.name) != os.getpid():
            found.append(command)
    return found


def test_output_status_and_standard_input(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call:
        assert call.run(["cat"], stdin=b"text" * MIB) == b"text" * MIB
        assert call.run(["sh", "-c", "echo $PWD; exit 3"], accepts=[0, 3]) == f"{call.directory}\n".encode()
        pieces: list[bytes] = []
        assert call.run(["sh", "-c", "echo one; sleep 0.3; echo two"], on_output=pieces.append) == b""
        assert pieces == [b"one\n", b"two\n"]


@pytest.mark.parametrize(
    ("limits", "command", "error", "message"),
    [
        (
            Limits(wall_seconds=0.5),
            ["sleep", MARK],
            TimedOut,
            r"the call took more than 0\.5 s \(--timeout\)",
        ),
        (
            Limits(cpu_seconds=1),
            ["sh", "-c", "while :; do :; done"],
            TimedOut,
            r"sh took more than 1 s of CPU time \(--cpu\)",
        ),
        (
            Limits(scratch_bytes=MIB),
            ["sh", "-c", "head -c 2000000 /dev/zero > file"],
            NoRoom,
            r"sh has to write more than 1048576 bytes \(--scratch-bytes\)",
        ),
        (
            Limits(scratch_bytes=MIB),
            ["sh", "-c", "for i in 1 2 3 4; do head -c 500000 /dev/zero > $i; done; sleep 9"],
            NoRoom,
            r"the call has written [0-9]+ bytes, more than 1048576 \(--scratch-bytes\)",
        ),
        (
            Limits(memory_bytes=64 * MIB),
            ALLOCATE,
            NoRoom,
            r"dd used more than 67108864 bytes of memory \(--memory\)",
        ),
    ],
    ids=["timeout", "cpu", "large file", "many files", "memory"],
)
def test_program_beyond_a_limit_is_ended(
    tmp_path: Path, limits: Limits, command: Sequence[str], error: type[ImageServiceError], message: str
) -> None:
    with workspace_in(tmp_path, limits) as call, pytest.raises(error, match=f"^{message}$"):
        call.run(command)
    assert processes(MARK) == []


def test_cpu_time_is_limited_without_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a namespace gets no SIGXCPU."""
    monkeypatch.setattr(sandbox, "find_isolation", lambda: "unshare")
    with (
        workspace_in(tmp_path, Limits(cpu_seconds=1)) as call,
        pytest.raises(TimedOut, match=r"^sh took more than 1 s of CPU time \(--cpu\)$"),
    ):
        call.run(["sh", "-c", "while :; do :; done"])


def test_memory_is_watched_where_no_control_group_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_cgroup, "parent_cgroups", lambda: iter(()))
    with (
        workspace_in(tmp_path, Limits(memory_bytes=64 * MIB)) as call,
        pytest.raises(NoRoom, match=r"^sh used more than 67108864 bytes of memory \(--memory\)$"),
    ):
        call.run(["sh", "-c", '"$@"; true', "sh", *ALLOCATE])


def test_programs_within_the_limits_end_well(tmp_path: Path) -> None:
    limits = Limits(4 * MIB, 5, 100 * MIB, 64 * MIB, 60)
    with workspace_in(tmp_path, limits) as call:
        call.run(["sh", "-c", "head -c 1000000 /dev/zero > file; rm file; head -c 1000000 /dev/zero > file"])


def test_holes_are_not_written_bytes(tmp_path: Path) -> None:
    with workspace_in(tmp_path, Limits(scratch_bytes=MIB)) as call:
        call.run(["truncate", "-s", "1G", "file"], file_bytes=1 << 30)
        with pytest.raises(NoRoom, match=r"^truncate has to write more than 1048576 bytes"):
            call.run(["truncate", "-s", "1G", "other"])


def test_file_that_is_changed_in_place_may_be_larger_than_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "disk").open("w+b") as disk:
        disk.truncate(64 * MIB)
        with workspace_in(tmp_path, Limits(scratch_bytes=MIB)) as call:
            target = f"of=/proc/self/fd/{disk.fileno()}"
            call.run(
                ["dd", "if=/dev/zero", target, "bs=4k", "seek=10000", "count=1", "conv=notrunc"],
                descriptors=[disk.fileno()],
            )


def test_io_rate_stops_a_program_that_is_ahead(tmp_path: Path) -> None:
    with workspace_in(tmp_path, Limits(io_bytes_per_second=8 * MIB)) as call:
        started_at = time.monotonic()
        script = "for i in $(seq 16); do head -c 1M /dev/zero > file; sleep 0.02; done"
        call.run(["sh", "-c", script])
        assert time.monotonic() - started_at > 1


def test_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call, pytest.raises(MissingDependency, match=r"^not installed: nosuch$"):
        call.run(["nosuch"])


def test_message_of_a_failed_program_has_no_private_path_and_is_printable(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call, (tmp_path / "image").open("w+b") as image:
        number = image.fileno()
        script = f'printf "$PWD/file: /proc/self/fd/{number}: \\033[31mbad\\n" >&2; exit 7'
        with pytest.raises(ConversionFailed) as failure:
            call.run(["sh", "-c", script], descriptors=[number])
    assert failure.value.detail == r"sh exited with status 7: file: the image: \x1b[31mbad"


def test_long_messages_are_cut(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call, pytest.raises(ConversionFailed) as failure:
        call.run(["sh", "-c", "yes message | head -c 10M >&2; echo end >&2; exit 1"])
    assert len(failure.value.detail) < 600
    assert failure.value.detail.endswith("; end")


def test_output_that_nobody_reads_is_bounded(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call, pytest.raises(ConversionFailed, match="printed more than 16777216"):
        call.run(["yes"])


def test_known_passing_failure_is_retried_once(tmp_path: Path) -> None:
    text = "qemu_thread_create: Resource temporarily unavailable"
    fail = f"echo >> tries; [ $(wc -l < tries) -gt {{}} ] || {{{{ echo {text} >&2; exit 1; }}}}"
    with workspace_in(tmp_path) as call:
        call.run(["sh", "-c", fail.format(1)])
        (call.directory / "tries").unlink()
        with pytest.raises(ConversionFailed, match=text):
            call.run(["sh", "-c", fail.format(2)])
        assert (call.directory / "tries").read_text() == "\n\n"


def test_children_of_a_program_end_with_it(tmp_path: Path) -> None:
    with workspace_in(tmp_path) as call:
        call.run(["sh", "-c", f"setsid sleep {MARK} & sleep {MARK} & echo started"])
    assert processes(MARK) == []


def test_program_runs_in_a_thread_too(tmp_path: Path) -> None:
    outputs: list[bytes] = []
    with workspace_in(tmp_path) as call:
        thread = threading.Thread(target=lambda: outputs.append(call.run(["echo", "text"])))
        thread.start()
        thread.join()
    assert outputs == [b"text\n"]


def groups() -> list[str]:
    """Return the names of the control groups that calls have made and not removed."""
    return [
        path.name
        for parent in memory_cgroup.parent_cgroups()
        for path in parent.directory.glob("image-toolkit-*")
    ]


CALL = f"""
import sys
from pathlib import Path
from image_service.common.command_line.parser import exit_on_signals
from image_service.common.programs import sandbox
from image_service.toolkit.workspace import workspace
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress

exit_on_signals()
directory, isolation = Path(sys.argv[1]), sys.argv[2]
sandbox.find_isolation = lambda: isolation
with workspace.Workspace(directory, Limits(memory_bytes=1 << 30), Progress(lambda *_: None)) as call:
    with call.output(directory / "out") as out:
        out.write_bytes(b"data")
        call.run(
            ["sh", "-c", "setsid sleep {MARK}1 & echo started; sleep {MARK}1"],
            on_output=lambda data: print(data.decode(), flush=True),
        )
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=str)
@pytest.mark.parametrize("isolation", ["bwrap", "unshare"])
def test_signal_ends_the_program_and_all_its_children(
    tmp_path: Path, number: signal.Signals, isolation: str
) -> None:
    """What SIGKILL leaves of files, the next call removes; of processes, it leaves none."""
    needs_client(isolation)
    (tmp_path / "out").write_bytes(b"before")
    with subprocess.Popen(
        [sys.executable, "-c", CALL, tmp_path, isolation], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
        process.communicate()
    assert process.returncode in {-number, 128 + number, 1}
    until = time.monotonic() + 30
    while processes(f"{MARK}1") and time.monotonic() < until:
        time.sleep(0.05)
    assert processes(f"{MARK}1") == []
    if number == signal.SIGKILL:
        assert len(list(tmp_path.iterdir())) == 3
        next_call = Workspace(tmp_path, Limits(memory_bytes=64 * MIB), Progress(lambda *_: None))
        with next_call as call, call.output(tmp_path / "new"):
            assert len(list(tmp_path.iterdir())) == 3
            call.run(["true"])
    assert [group for group in groups() if f"-{process.pid}-" in group or f"-{os.getpid()}-" in group] == []
    if number == signal.SIGKILL:
        (tmp_path / "new").unlink()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]
