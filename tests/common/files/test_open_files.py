from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile
from image_service.common.files.open_files import OpenFiles

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.base_file import BaseFile


def opened(path: Path) -> BaseFile:
    path.touch()
    return LocalFile(os.open(path, os.O_RDONLY), 0, str(path))


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    files, file = OpenFiles(), opened(tmp_path / "a")
    files.add_file(file)
    descriptor, reader = file.descriptor, [file]
    del file
    gc.collect()
    assert is_open(descriptor)
    reader.clear()
    gc.collect()
    assert not is_open(descriptor)


def test_close_closes_each_file_once(tmp_path: Path) -> None:
    files, held = OpenFiles(), [opened(tmp_path / name) for name in "abc"]
    for number in range(len(held)):
        files.add_file(held[number])
    gone = held.pop().descriptor
    gc.collect()
    assert not is_open(gone)
    files.close()
    assert not any(is_open(file.descriptor) for file in held)

    os.dup2(os.open(tmp_path, os.O_RDONLY), held[0].descriptor)  # reused by another file
    files.close()
    other = held[0].descriptor
    held.clear()
    gc.collect()
    assert is_open(other)
    os.close(other)


def test_len_counts_open_files(tmp_path: Path) -> None:
    files, held = OpenFiles(), [opened(tmp_path / name) for name in "ab"]
    for number in range(len(held)):
        files.add_file(held[number])
    assert len(files) == 2
    held.pop()
    gc.collect()
    assert len(files) == 1
    files.close()
    assert len(files) == 0
