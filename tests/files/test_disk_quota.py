from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.errors import Unavailable
from image_service.files import disk_quota
from image_service.files.disk_quota import DiskQuota

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def nothing() -> bool:
    return False


def test_what_the_disk_has_is_not_all_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_quota, "SPARE_BYTES", 0)
    free = DiskQuota(tmp_path, None, nothing).free()
    monkeypatch.setattr(disk_quota, "SPARE_BYTES", free // 2)
    rooms = DiskQuota(tmp_path, None, nothing)
    with rooms.reserved("a") as check, pytest.raises(Unavailable, match=f"{free} bytes are missing"):
        check(0, free)
    with rooms.reserved("a") as check:
        check(0, free // 4)


def test_the_bound_counts_all_files(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(60))
    with DiskQuota(tmp_path, 100, nothing).reserved("a") as check:
        check(0, 40)
        with pytest.raises(Unavailable, match="41 bytes are missing, others wait for 0, 40 may be written"):
            DiskQuota(tmp_path, 100, nothing)._check("b", 41)


def test_what_is_there_of_a_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "partial").write_bytes(bytes(60))
    with DiskQuota(tmp_path, 100, nothing).reserved("a") as check:
        check(60, 100)


def test_two_do_not_get_the_same_room(tmp_path: Path) -> None:
    rooms = DiskQuota(tmp_path, 100, nothing)
    with rooms.reserved("a") as first:
        first(0, 60)
        with rooms.reserved("b") as second, pytest.raises(Unavailable, match="others wait for 60"):
            second(0, 60)
    with rooms.reserved("b") as second:
        second(0, 60)


def test_what_is_not_known_beforehand_is_seen_while_it_grows(tmp_path: Path) -> None:
    rooms = DiskQuota(tmp_path, 20 * MIB, nothing)
    with rooms.reserved("a") as check, (tmp_path / "partial").open("wb") as file:
        check(0, None)
        for done in range(MIB, 20 * MIB + 1, MIB):
            os.truncate(file.fileno(), done)
            check(done, None)
        os.truncate(file.fileno(), 33 * MIB)
        with pytest.raises(Unavailable, match="there is no room"):
            check(33 * MIB, None)


def test_what_can_be_done_without_is_removed_first(tmp_path: Path) -> None:
    (tmp_path / "useless").write_bytes(bytes(60))

    def relieve() -> bool:
        (tmp_path / "useless").unlink()
        return True

    with DiskQuota(tmp_path, 100, relieve).reserved("a") as check:
        check(0, 40)
        assert (tmp_path / "useless").exists()
    with DiskQuota(tmp_path, 100, relieve).reserved("a") as check:
        check(0, 41)
        assert not (tmp_path / "useless").exists()
