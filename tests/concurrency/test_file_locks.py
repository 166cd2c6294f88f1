from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from image_service.concurrency.file_locks import FileLocks
from image_service.concurrency.interruption import Interrupted, Interruption

HOLDER = """
import sys
from pathlib import Path
from image_service.concurrency.interruption import Interruption
from image_service.concurrency.file_locks import FileLocks
locks = FileLocks(Path(sys.argv[1]))
presence = locks.present(locks.alone(), Interruption())
with locks.held("a", Interruption()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def locks(tmp_path: Path) -> FileLocks:
    """The locks of an empty directory."""
    return FileLocks(tmp_path / "locks")


def test_one_name_is_held_by_one(locks: FileLocks) -> None:
    with locks.held("a", Interruption()), locks.tried("a") as again, locks.tried("b") as other:
        assert (again, other) == (False, True)
    with locks.tried("a") as again:
        assert again


def test_who_comes_second_waits(locks: FileLocks) -> None:
    order, began = [], threading.Event()

    def second() -> None:
        began.set()
        with locks.held("a", Interruption()):
            order.append("second")

    thread = threading.Thread(target=second)
    with locks.held("a", Interruption()):
        thread.start()
        began.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_wait_is_interrupted_and_leaves_nothing_open(locks: FileLocks) -> None:
    interruption = Interruption()
    with locks.held("a", Interruption()):
        before = open_files()
        threading.Timer(0.01, interruption.interrupt).start()
        with pytest.raises(Interrupted), locks.held("a", interruption):
            pass
        assert open_files() == before


def test_a_process_that_is_killed_holds_nothing(locks: FileLocks, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with locks.tried("a") as free:
            assert not free
        assert locks.alone() is None
        process.kill()
        process.wait()
        with locks.tried("a") as free:
            assert free
    os.close(locks.present(locks.alone(), Interruption()))


def test_many_may_be_there_but_one_may_be_alone(locks: FileLocks) -> None:
    alone = locks.alone()
    assert alone is not None
    assert locks.alone() is None
    first = locks.present(alone, Interruption())
    assert first == alone
    second = locks.present(locks.alone(), Interruption())
    assert locks.alone() is None
    os.close(first)
    assert locks.alone() is None
    os.close(second)
    last = locks.alone()
    assert last is not None
    os.close(last)


def test_who_comes_waits_for_one_that_is_alone(locks: FileLocks) -> None:
    alone, interruption = locks.alone(), Interruption()
    assert alone is not None
    interruption.interrupt()
    with pytest.raises(Interrupted):
        locks.present(None, interruption)
    os.close(alone)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))
