"""What the file systems of a live image have in common: a tree of nodes, and how a path is followed in it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.errors import FileNotInImage, FormatError
from image_service.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.formats.iso9660 import IsoFile
    from image_service.formats.reading import ReadAt

MAX_DIRECTORY = 1024 * 1024
"""Bytes of a directory's listing; a real /usr/bin has some 50 thousand."""

_MAX_TARGET = 4095  # PATH_MAX without its NUL
_MAX_SYMLINKS = 8  # on one path; also what ends a cycle
_MAX_STEPS = 256  # names on one path, those of symlinks included


class TreeNode(Protocol):
    """A file, a directory or a symlink."""

    @property
    def mode(self) -> int:
        """File type and permissions."""

    @property
    def size(self) -> int:
        """Bytes of the content, as the image has it: any number."""

    def read(self) -> bytes:
        """The content, or a symlink's target.

        Raises:
            FormatError: it cannot be read.
        """

    def entries(self) -> Mapping[str, Callable[[], TreeNode]]:
        """What a directory holds: a function for each name, that reads the node.

        Raises:
            FormatError: the listing has more than `MAX_DIRECTORY` bytes, or is damaged.
        """


@attrs.frozen(eq=False)
class FileWindow:
    """Reads a file of the image by its own offsets, and nothing outside of it.

    Args:
        image: reads the image.
        file: what is to be read of it.
    """

    image: ReadAt
    file: IsoFile

    def __call__(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset`` of the file.

        Raises:
            FormatError: they are not all in it.
        """
        if offset + length > self.file.length:
            raise FormatError(
                f"{self.file.path} of {self.file.length} bytes is damaged:"
                f" it refers to {length} bytes at offset {offset}"
            )
        return read_exactly(self.image, self.file.offset + offset, length)


def find_node(root: TreeNode, path: str) -> TreeNode:
    """Follow a path, with the relative symlinks on it.

    Args:
        root: where it begins.
        path: names with slashes between them.

    Returns:
        what it leads to, which is no symlink.

    Raises:
        FileNotInImage: it leads nowhere.
        FormatError: a symlink on it is absolute or leaves the root, there are too many of them, or
            what lies on it is damaged.
    """
    trail = [root]
    names = path.split("/")[::-1]
    symlinks = steps = 0
    while names:
        name = names.pop()
        steps += 1
        if name == "..":
            trail.pop()
        elif name not in {"", "."}:
            node = _child(trail[-1], name, path)
            if stat.S_ISLNK(node.mode):
                symlinks += 1
                names += _target(node, path).split("/")[::-1]
            else:
                trail.append(node)
        if not trail:
            raise FormatError(f"a symlink on {path} leaves the file system")
        if symlinks > _MAX_SYMLINKS or steps > _MAX_STEPS:
            raise FormatError(f"{path} has more than {_MAX_SYMLINKS} symlinks or {_MAX_STEPS} names")
    return trail[-1]


def _child(directory: TreeNode, name: str, path: str) -> TreeNode:
    if not stat.S_ISDIR(directory.mode):
        raise FileNotInImage(f"no file {path}: {name} would lie in what is no directory")
    entry = directory.entries().get(name)
    if entry is None:
        raise FileNotInImage(f"no file {path}: there is no {name}")
    return entry()


def _target(symlink: TreeNode, path: str) -> str:
    if symlink.size > _MAX_TARGET:
        raise FormatError(f"a symlink on {path} has {symlink.size} bytes, more than {_MAX_TARGET}")
    target = symlink.read().decode("utf-8", "surrogateescape")
    if target.startswith("/"):
        raise FormatError(f"a symlink on {path} is absolute, which is not followed")
    return target
