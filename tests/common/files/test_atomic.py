from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.files.atomic import (
    atomic_target,
    atomic_write,
    remove_temporary_files,
    scratch_directory,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_atomic_write_publishes_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    with atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "rhcos-x.iso"):
        (left,) = tmp_path.iterdir()  # as if the process ended here
        left.rename(tmp_path / "aside")
        (tmp_path / "aside").rename(left)
        remove_temporary_files(tmp_path)
        assert not list(tmp_path.iterdir())
        left.touch()


def test_atomic_target_publishes_a_complete_file(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    with atomic_target(path) as temporary:
        temporary.write_bytes(b"whole")
        assert list(tmp_path.iterdir()) == [temporary]
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_target_that_raises_leaves_nothing(tmp_path: Path) -> None:
    def give_up(half: Path) -> None:
        half.write_bytes(b"half")
        raise KeyError

    with pytest.raises(KeyError), atomic_target(tmp_path / "rhcos-x.iso") as temporary:
        give_up(temporary)
    assert list(tmp_path.iterdir()) == []


def test_file_is_synced_before_it_is_renamed_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "rhcos-x.iso", []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_target(path) as temporary:
        temporary.write_bytes(b"whole")
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_atomic_target_without_a_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_target(tmp_path / "rhcos-x.iso"):
        pass


def test_scratch_directory_is_removed_with_its_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "file").write_bytes(b"anything")
    assert list(tmp_path.iterdir()) == []


def test_scratch_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "file").write_bytes(b"anything")
        remove_temporary_files(tmp_path)  # as if the process had ended here
        assert list(tmp_path.iterdir()) == []
        directory.mkdir()
