from __future__ import annotations

import stat
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.file_tree import find_node

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen
class File:
    content: bytes = b""
    mode: int = stat.S_IFREG | 0o644
    claimed_size: int | None = None

    @property
    def size(self) -> int:
        return len(self.content) if self.claimed_size is None else self.claimed_size

    def read(self) -> bytes:
        assert self.claimed_size is None, "it is too large to be read"
        return self.content

    def entries(self) -> dict[str, Callable[[], File]]:
        raise AssertionError("this is not a directory")


@attrs.frozen
class Directory(File):
    files: dict[str, File] = attrs.field(factory=dict)
    mode: int = stat.S_IFDIR | 0o755

    def entries(self) -> dict[str, Callable[[], File]]:
        return {name: partial(self.files.__getitem__, name) for name in self.files}


def symlink(target: bytes, claimed_size: int | None = None) -> File:
    return File(target, stat.S_IFLNK | 0o777, claimed_size)


def tree(**files: File) -> Directory:
    return Directory(files=files)


PROGRAM = File(b"program")
ROOT = tree(
    usr=tree(
        bin=tree(
            program=PROGRAM,
            same=symlink(b"program"),
            around=symlink(b"../../usr/./bin//program"),
            twice=symlink(b"../lib/same"),
            absolute=symlink(b"/usr/bin/program"),
            outside=symlink(b"../../../usr/bin/program"),
            around_root=symlink(b"/../usr/./absolute_lib/program"),
            nowhere_else=symlink(b"/usr/none"),
            nowhere=symlink(b"none"),
            through=symlink(b"program/none"),
            cycle=symlink(b"cycle"),
            long=symlink(b"./" * 300 + b"program"),
            huge=symlink(b"", 4096),
        ),
        lib=symlink(b"bin"),
        absolute_lib=symlink(b"/usr/bin"),
        **{f"l{number}": symlink(b"l%d/" % (number + 1)) for number in range(20)},
        l20=symlink(b"bin"),
    ),
)


@pytest.mark.parametrize(
    "path",
    [
        "usr/bin/program",
        "/usr//bin/./program",
        "usr/bin/../bin/program",
        "usr/lib/program",
        "usr/bin/same",
        "usr/bin/around",
        "usr/bin/twice",
        "usr/l13/program",
        "usr/bin/absolute",
        "usr/absolute_lib/same",
        "usr/bin/outside",
        "usr/bin/around_root",
        "../usr/bin/program",
    ],
)
def test_path_is_resolved(path: str) -> None:
    assert find_node(ROOT, path) is PROGRAM


def test_path_of_a_directory_is_resolved() -> None:
    assert find_node(ROOT, "usr/lib") is find_node(ROOT, "usr/bin")
    assert find_node(ROOT, "") is ROOT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("usr/bin/none", "no file usr/bin/none: there is no none"),
        ("usr/bin/program/none", "the parent of none is not a directory"),
        ("usr/bin/nowhere", "there is no none"),
        ("usr/bin/nowhere_else", "there is no none"),
        ("usr/bin/through", "the parent of none is not a directory"),
    ],
)
def test_missing_file_is_file_not_in_image(path: str, message: str) -> None:
    with pytest.raises(FileNotInImage, match=message):
        find_node(ROOT, path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("usr/bin/cycle", "more than 8 symlinks"),
        ("usr/l12/program", "more than 8 symlinks"),
        ("usr/bin/long", "256 names"),
        ("usr/bin/huge", "has 4096 bytes, more than 4095"),
    ],
)
def test_unsupported_symlinks_are_refused(path: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as refused:
        find_node(ROOT, path)
    assert not isinstance(refused.value, FileNotInImage)
