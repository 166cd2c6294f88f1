"""The model of all file systems: a tree of nodes, and the resolution of paths in it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

import attrs

from image_service.core.errors import FileNotInImage, FormatError

_Node = TypeVar("_Node", bound="TreeNode")

MAX_DIRECTORY = 1024 * 1024
"""Bytes of a directory's listing; a real /usr/bin has some 50 thousand."""

MAX_READ = 128 * 1024 * 1024
"""Bytes that the nodes of ext4 and FAT return at once; larger files are read in parts."""

_MAX_TARGET = 4095  # PATH_MAX without its NUL
_MAX_SYMLINKS = 8  # per path; also bounds a cycle
_MAX_STEPS = 256  # names per path, including those of symlinks


class TreeNode(Protocol):
    """A file, a directory or a symlink; its methods raise FormatError if the image is damaged."""

    @property
    def mode(self) -> int:
        """File type and permissions."""

    @property
    def size(self) -> int:
        """Bytes of the content according to the image: any number."""

    def read(self) -> bytes:
        """Return the content, or a symlink's target."""

    def entries(self) -> Mapping[str, Callable[[], TreeNode]]:
        """Return by name functions that read the nodes; FormatError for more than `MAX_DIRECTORY` bytes."""


def fold_case(name: str) -> str:
    """Return the name in capitals, by which FAT and NTFS compare.

    A letter whose capital is two letters stays, so ``straße`` is not ``STRASSE``.
    """
    if name.isascii():
        return name.upper()
    return "".join(capital if len(capital := letter.upper()) == 1 else letter for letter in name)


@attrs.frozen
class CaseInsensitiveEntries(Mapping[str, Callable[[], _Node]]):
    """A directory's entries, found in any case and listed as they are spelled."""

    _entries: Mapping[str, Callable[[], _Node]]
    _spellings: Mapping[str, str] = attrs.field(init=False)

    @_spellings.default
    def _index(self) -> Mapping[str, str]:
        return {fold_case(name): name for name in self._entries}

    def __getitem__(self, name: str) -> Callable[[], _Node]:
        return self._entries[self._spellings[fold_case(name)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def find_node(root: TreeNode, path: str) -> TreeNode:
    """Resolve a path below ``root`` and the symlinks on it; the result is not a symlink.

    As for a process whose root this is, an absolute symlink starts at the root, whose parent is itself.

    Raises:
        FileNotInImage: there is no such file.
        FormatError: there are too many symlinks, or a node is damaged.
    """
    trail = [root]
    names = path.split("/")[::-1]
    symlinks = steps = 0
    while names:
        name = names.pop()
        steps += 1
        if name == "..":
            del trail[max(1, len(trail) - 1) :]
        elif name not in {"", "."}:
            if not stat.S_ISDIR(trail[-1].mode):
                raise FileNotInImage(f"no file {path}: the parent of {name} is not a directory")
            read_node = trail[-1].entries().get(name)
            if read_node is None:
                raise FileNotInImage(f"no file {path}: there is no {name}")
            node = read_node()
            if stat.S_ISLNK(node.mode):
                symlinks += 1
                target = _read_target(node, path)
                if target.startswith("/"):
                    del trail[1:]
                names += target.split("/")[::-1]
            else:
                trail.append(node)
        if symlinks > _MAX_SYMLINKS or steps > _MAX_STEPS:
            raise FormatError(f"{path} crosses more than {_MAX_SYMLINKS} symlinks or {_MAX_STEPS} names")
    return trail[-1]


def find_optional(root: TreeNode, path: str) -> TreeNode | None:
    """Resolve a path as `find_node` does; None: there is no such file."""
    try:
        return find_node(root, path)
    except FileNotInImage:
        return None


def _read_target(symlink: TreeNode, path: str) -> str:
    if symlink.size > _MAX_TARGET:
        raise FormatError(f"a symlink on {path} has {symlink.size} bytes, more than {_MAX_TARGET}")
    return symlink.read().decode("utf-8", "surrogateescape")
