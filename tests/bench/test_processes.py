"""CPU time and memory of processes, while some of them exit."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READERS: list[Callable[[int], float]] = [processes.cpu_seconds, processes.memory_bytes]
WAITING = "print(flush=True); sys.stdin.read(); sys.exit()"
BUSY = f"block = b'x' * 32_000_000; sum(block); {WAITING}"
FORKING = """
import os, sys
if not os.fork():
    {child}
{parent}
sys.stdin.read()
"""


@contextmanager
def forked(child: str, parent: str = "") -> Iterator[int]:
    """Run a process with a child until one of them prints a line; yield the process id."""
    command = [sys.executable, "-c", FORKING.format(child=child, parent=parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@pytest.mark.parametrize("read", READERS)
def test_child_processes_count(read: Callable[[int], float]) -> None:
    """The child uses more than its parent."""
    with forked(BUSY) as pid:
        of_child = read(child_of(pid))
        assert read(pid) > of_child > 0


def test_zombie_child_has_no_memory() -> None:
    """Its status has not been read, so it is still a process."""
    with forked("os._exit(0)", "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT); print(flush=True)") as pid:
        assert child_of(pid)
        assert processes.memory_bytes(pid) > 0


@pytest.mark.parametrize("read", READERS)
def test_process_that_exits_meanwhile_is_skipped(
    read: Callable[[int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with forked(WAITING) as pid:
        gone = subprocess.Popen(["true"])
        gone.wait()
        monkeypatch.setattr(processes, "_children", lambda _: [gone.pid])
        assert read(pid) > 0


def test_thread_that_exits_meanwhile_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [Path("/proc/self/task/0")]
    with forked(WAITING) as pid:
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(gone))
        assert processes.cpu_seconds(pid) > 0


@pytest.mark.parametrize("read", READERS)
def test_exited_process_raises_os_error(read: Callable[[int], float]) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(OSError, match=r"No such process|Invalid argument|No such file"):
        read(process.pid)
