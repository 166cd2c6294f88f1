"""Base images that are kept by digest."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import TransferFailed
from image_service.jobs.worker.input_cache import InputCache
from image_service.toolkit.disks.opening import open_image

if TYPE_CHECKING:
    from pathlib import Path

_WAIT_SECONDS = 60


class Origin:
    """Has one file, and counts how often it is fetched."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.fetches = 0

    def fetch(self, path: Path) -> None:
        self.fetches += 1
        path.write_bytes(self.content)

    def get(self, cache: InputCache) -> bytes:
        with cache.file(self.sha256, len(self.content), self.fetch, Interruption()) as path:
            return path.read_bytes()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_file_is_fetched_once(tmp_path: Path) -> None:
    origin = Origin(b"base")
    assert [origin.get(InputCache(tmp_path, 100)) for _ in range(3)] == [b"base"] * 3
    assert origin.fetches == 1


def test_file_used_longest_ago_is_removed_first(tmp_path: Path) -> None:
    cache, origins = InputCache(tmp_path, 10), [Origin(bytes([number]) * 4) for number in range(3)]
    for age, origin in enumerate(origins[:2]):
        origin.get(cache)
        os.utime(tmp_path / origin.sha256, (age, age))
    origins[0].get(cache)  # the other one is older now
    origins[2].get(cache)
    assert names(tmp_path) == {origins[0].sha256, origins[2].sha256}


def test_file_in_use_stays(tmp_path: Path) -> None:
    cache, used, other = InputCache(tmp_path, 5), Origin(b"used"), Origin(b"other")
    with cache.file(used.sha256, 4, used.fetch, Interruption()) as path:
        other.get(cache)
        assert path.read_bytes() == b"used"


def test_further_use_does_not_change_a_file_that_a_program_reads(tmp_path: Path) -> None:
    cache, origin = InputCache(tmp_path, 4096), Origin(bytes(1024))
    origin.get(cache)
    os.utime(tmp_path / origin.sha256, (0, 0))
    with open_image(tmp_path / origin.sha256, "raw"):  # raises at its end if the file has changed
        assert origin.get(cache) == origin.content
    assert (tmp_path / origin.sha256).stat().st_atime > 0


def test_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    cache, origin = InputCache(tmp_path, 100), Origin(b"base")

    def fail(path: Path) -> None:
        path.write_bytes(b"ba")
        raise TransferFailed("other bytes")

    with (
        pytest.raises(TransferFailed),
        cache.file(origin.sha256, 4, fail, Interruption()),
    ):
        pass
    assert names(tmp_path) == set()
    assert origin.get(cache) == b"base"


def test_unfinished_file_of_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    origin = Origin(b"base")
    (tmp_path / f"{origin.sha256}.part").write_bytes(b"a longer beginning")
    assert origin.get(InputCache(tmp_path, 100)) == b"base"
    assert names(tmp_path) == {origin.sha256}


def test_workers_wait_for_the_one_that_fetches(tmp_path: Path) -> None:
    origin, started, may_end = Origin(b"base"), threading.Event(), threading.Event()
    contents: list[bytes] = []

    def fetch(path: Path) -> None:
        origin.fetch(path)
        started.set()
        may_end.wait(_WAIT_SECONDS)

    def get() -> None:
        with InputCache(tmp_path, 100).file(origin.sha256, 4, fetch, Interruption()) as path:
            contents.append(path.read_bytes())

    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(_WAIT_SECONDS)
    may_end.set()
    for thread in threads:
        thread.join(_WAIT_SECONDS)
    assert contents == [b"base"] * 3
    assert origin.fetches == 1
