"""Scratch space of jobs: reservations, and temporary directories."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.jobs.worker.scratch import JobScratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WAIT_SECONDS = 60


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[JobScratch]:
    with closing(JobScratch(tmp_path, 100)) as opened:
        yield opened


def has_to_wait(scratch: JobScratch, stopping: Interruption) -> bool:
    try:
        scratch.wait_for_room(stopping)
    except Interrupted:
        return True
    return False


def test_reservation_waits_for_room(scratch: JobScratch) -> None:
    order: list[str] = []

    def wait() -> None:
        with scratch.reserved(50, Interruption()):
            order.append("second")

    with scratch.reserved(60, Interruption()):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join(_WAIT_SECONDS)
    assert order == ["first", "second"]


def test_no_job_is_taken_while_another_waits_for_room(scratch: JobScratch) -> None:
    scratch.wait_for_room(Interruption())
    waits, interruption = threading.Event(), Interruption()

    def reserve() -> None:
        waits.set()
        with pytest.raises(Interrupted), scratch.reserved(50, interruption):
            pass

    with scratch.reserved(60, Interruption()):
        scratch.wait_for_room(Interruption())  # 40 bytes are free, and nobody wants them
        thread = threading.Thread(target=reserve)
        thread.start()
        waits.wait(_WAIT_SECONDS)
        stopping = Interruption()
        stopping.interrupt()
        while not has_to_wait(scratch, stopping):
            pass
        interruption.interrupt()
        thread.join(_WAIT_SECONDS)
    scratch.wait_for_room(stopping)


def test_job_that_is_larger_than_the_scratch_gets_all_of_it(scratch: JobScratch) -> None:
    with scratch.reserved(1000, Interruption()) as room:
        assert room == 100


def test_directory_is_removed_with_its_files(scratch: JobScratch, tmp_path: Path) -> None:
    with scratch.directory("convert") as directory:
        (directory / "file").write_bytes(b"secret")
        assert directory.stat().st_mode & 0o777 == 0o700
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_directories_of_other_workers_stay_and_those_of_killed_ones_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / "image-service-worker.dead"
    (dead / "convert.x").mkdir(parents=True)
    (tmp_path / "of-somebody").mkdir()
    with closing(JobScratch(tmp_path, None)) as first, first.directory("convert") as directory:
        assert not dead.exists()
        with closing(JobScratch(tmp_path, None)):
            assert directory.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["of-somebody"]


def test_scratch_is_made_if_it_is_not_there(tmp_path: Path) -> None:
    with closing(JobScratch(tmp_path / "a" / "b", None)) as scratch:
        assert scratch.total_bytes > 0
