"""Several processes on one cache directory: eviction beside senders, and killed processes."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.common.files.block_cache.caches import MIB, SMALLEST, open_cache, opened, present
from tests.common.files.block_cache.origin import Origin, content, identity_of
from tests.common.files.block_cache.reader import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[4]


class Readers:
    """Processes that read, killed at the end of the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, seed: int, count: str) -> subprocess.Popen[bytes]:
        """Start a process, and wait until it reads."""
        command = [sys.executable, "-m", "tests.common.files.block_cache.reader"]
        process = subprocess.Popen(
            [*command, str(self._directory), str(seed), count], cwd=ROOT, stdout=subprocess.PIPE
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    """Readers of a cache in the test's directory."""
    readers = Readers(tmp_path)
    yield readers
    for process in readers.processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("count", [300, pytest.param(500_000, marks=pytest.mark.soak)])
def test_no_sender_sends_what_another_process_evicts(readers: Readers, tmp_path: Path, count: int) -> None:
    running = [readers.start(seed, str(count)) for seed in range(2)]
    with open_cache(tmp_path) as cache:
        while any(process.poll() is None for process in running):
            select.select([], [], [], 0.05)
            assert cache.allocated_bytes() <= SMALLEST
    assert [process.wait() for process in running] == [0, 0]


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_process_leaves_a_right_cache(readers: Readers, tmp_path: Path, kills: int) -> None:
    numbers = random.Random(1)  # noqa: S311 - any will do
    for seed in range(kills):
        process = readers.start(seed, "fill")
        with open_cache(tmp_path) as cache:
            file = cache.open(identity_of(SIZE), Origin())
            enough = min(SIZE // MIB, len(present(file)) + numbers.randrange(1, 40))
            with opened(file) as files:
                while process.poll() is None and bytes(files.present).count(1) < min(enough, 100):
                    select.select([], [], [], 0.001)
            process.kill()
            process.wait()
            for granule in present(file):
                length = min(MIB, SIZE - granule * MIB)
                assert os.pread(file.descriptor, MIB, granule * MIB) == content(granule * MIB, length)
            for granule in numbers.sample(range(SIZE // MIB), 20):
                assert file.read_at(granule * MIB, 99) == content(granule * MIB, 99)
            assert cache.allocated_bytes() <= SMALLEST
            file.close()
