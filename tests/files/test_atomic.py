from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from image_service.files.atomic import atomic_target, atomic_write, remove_temporary_files, scratch_directory

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    with atomic_write(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_keeps_its_content_until_then(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_left_behind_is_known_again(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "rhcos-x.iso"):
        (left,) = tmp_path.iterdir()  # as if the process ended here
        left.rename(tmp_path / "aside")
        (tmp_path / "aside").rename(left)
        remove_temporary_files(tmp_path)
        assert not list(tmp_path.iterdir())
        left.touch()


def test_a_file_that_somebody_else_writes_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-x.iso"
    with atomic_target(path) as temporary:
        temporary.write_bytes(b"whole")
        assert list(tmp_path.iterdir()) == [temporary]
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_somebody_else_gave_up_is_left_nowhere(tmp_path: Path) -> None:
    def give_up(half: Path) -> None:
        half.write_bytes(b"half")
        raise KeyError

    with pytest.raises(KeyError), atomic_target(tmp_path / "rhcos-x.iso") as temporary:
        give_up(temporary)
    assert list(tmp_path.iterdir()) == []


def test_a_file_gets_its_name_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "rhcos-x.iso", []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_target(path) as temporary:
        temporary.write_bytes(b"whole")
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_a_file_that_nobody_wrote_is_missed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_target(tmp_path / "rhcos-x.iso"):
        pass


def test_scratch_files_end_with_their_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "file").write_bytes(b"anything")
    assert list(tmp_path.iterdir()) == []


def test_scratch_files_that_are_left_behind_are_known_again(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as directory:
        (directory / "file").write_bytes(b"anything")
        remove_temporary_files(tmp_path)  # as if the process had ended here
        assert list(tmp_path.iterdir()) == []
        directory.mkdir()
