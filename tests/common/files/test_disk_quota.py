from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.files import disk_quota
from image_service.common.files.disk_quota import DiskQuota
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def reclaim_nothing() -> bool:
    return False


def test_spare_bytes_of_the_disk_are_never_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_quota, "SPARE_BYTES", 0)
    free = DiskQuota(tmp_path, None, [reclaim_nothing]).free_bytes()
    monkeypatch.setattr(disk_quota, "SPARE_BYTES", free // 2)
    quota = DiskQuota(tmp_path, None, [reclaim_nothing])
    with (
        quota.reserve("a") as check,
        pytest.raises(
            Unavailable,
            match=f"not enough disk space: {free} bytes needed.* in {tmp_path}, beside {free // 2} that",
        ),
    ):
        check(0, free)
    with quota.reserve("a") as check:
        check(0, free // 4)


def test_quota_counts_all_files_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(60))
    with DiskQuota(tmp_path, 100, [reclaim_nothing]).reserve("a") as check:
        check(0, 40)
    message = "41 bytes needed, 0 reserved for other files, 40 free"
    refused = pytest.raises(Unavailable, match=message)
    with DiskQuota(tmp_path, 100, [reclaim_nothing]).reserve("b") as check, refused:
        check(0, 41)


def test_partial_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "partial").write_bytes(bytes(60))
    with DiskQuota(tmp_path, 100, [reclaim_nothing]).reserve("a") as check:
        check(60, 100)


def test_space_reserved_for_one_file_is_refused_to_another(tmp_path: Path) -> None:
    quota = DiskQuota(tmp_path, 100, [reclaim_nothing])
    with quota.reserve("a") as first:
        first(0, 60)
        with quota.reserve("b") as second, pytest.raises(Unavailable, match="60 reserved for other files"):
            second(0, 60)
    with quota.reserve("b") as second:
        second(0, 60)


def test_file_of_unknown_length_is_refused_once_it_exceeds_the_quota(tmp_path: Path) -> None:
    quota = DiskQuota(tmp_path, 20 * MIB, [reclaim_nothing])
    with quota.reserve("a") as check, (tmp_path / "partial").open("wb") as file:
        check(0, None)
        for done in range(MIB, 20 * MIB + 1, MIB):
            os.truncate(file.fileno(), done)
            check(done, None)
        os.truncate(file.fileno(), 33 * MIB)
        with pytest.raises(Unavailable, match="not enough disk space"):
            check(33 * MIB, None)


def test_reclaim_runs_only_when_space_is_short(tmp_path: Path) -> None:
    (tmp_path / "useless").write_bytes(bytes(60))

    def reclaim() -> bool:
        (tmp_path / "useless").unlink()
        return True

    with DiskQuota(tmp_path, 100, [reclaim]).reserve("a") as check:
        check(0, 40)
        assert (tmp_path / "useless").exists()
    with DiskQuota(tmp_path, 100, [reclaim]).reserve("a") as check:
        check(0, 41)
        assert not (tmp_path / "useless").exists()
