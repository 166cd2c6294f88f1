from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from image_service.common.concurrency.file_locks import FileLocks
from image_service.common.concurrency.interruption import Interrupted, Interruption

HOLDER = """
import sys
from pathlib import Path
from image_service.common.concurrency.interruption import Interruption
from image_service.common.concurrency.file_locks import FileLocks
locks = FileLocks(Path(sys.argv[1]))
presence = locks.acquire_presence(locks.acquire_exclusive_presence(), Interruption())
with locks.lock("a", Interruption()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def locks(tmp_path: Path) -> FileLocks:
    """The locks of an empty directory."""
    return FileLocks(tmp_path / "locks")


def test_name_is_locked_by_one_holder(locks: FileLocks) -> None:
    with locks.lock("a", Interruption()), locks.try_lock("a") as again, locks.try_lock("b") as other:
        assert (again, other) == (False, True)
    with locks.try_lock("a") as again:
        assert again


def test_second_holder_waits(locks: FileLocks) -> None:
    order, began = [], threading.Event()

    def second() -> None:
        began.set()
        with locks.lock("a", Interruption()):
            order.append("second")

    thread = threading.Thread(target=second)
    with locks.lock("a", Interruption()):
        thread.start()
        began.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_interrupted_wait_leaves_no_descriptor_open(locks: FileLocks) -> None:
    interruption = Interruption()
    with locks.lock("a", Interruption()):
        before = open_files()
        threading.Timer(0.01, interruption.interrupt).start()
        with pytest.raises(Interrupted), locks.lock("a", interruption):
            pass
        assert open_files() == before


def test_lock_of_a_killed_process_is_released(locks: FileLocks, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with locks.try_lock("a") as free:
            assert not free
        assert locks.acquire_exclusive_presence() is None
        process.kill()
        process.wait()
        with locks.try_lock("a") as free:
            assert free
    os.close(locks.acquire_presence(locks.acquire_exclusive_presence(), Interruption()))


def test_presence_is_shared_and_exclusive_presence_is_not(locks: FileLocks) -> None:
    alone = locks.acquire_exclusive_presence()
    assert alone is not None
    assert locks.acquire_exclusive_presence() is None
    first = locks.acquire_presence(alone, Interruption())
    assert first == alone
    second = locks.acquire_presence(locks.acquire_exclusive_presence(), Interruption())
    assert locks.acquire_exclusive_presence() is None
    os.close(first)
    assert locks.acquire_exclusive_presence() is None
    os.close(second)
    last = locks.acquire_exclusive_presence()
    assert last is not None
    os.close(last)


def test_presence_waits_for_an_exclusive_one(locks: FileLocks) -> None:
    alone, interruption = locks.acquire_exclusive_presence(), Interruption()
    assert alone is not None
    interruption.interrupt()
    with pytest.raises(Interrupted):
        locks.acquire_presence(None, interruption)
    os.close(alone)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))
