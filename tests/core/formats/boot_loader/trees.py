"""Directories and files in memory, for the readers of boot loaders' configurations."""

from __future__ import annotations

import stat
from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@attrs.frozen(eq=False)
class MemoryNode:
    """A file, a symlink or a directory."""

    mode: int
    content: bytes = b""
    children: dict[str, MemoryNode] = attrs.field(factory=dict)

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self) -> bytes:
        return self.content

    def entries(self) -> Mapping[str, Callable[[], MemoryNode]]:
        return {name: partial(self.children.__getitem__, name) for name in self.children}


def make_tree(files: Mapping[str, str]) -> MemoryNode:
    """Return the root of files by path; a text that begins with ``->`` is the target of a symlink."""
    root = MemoryNode(stat.S_IFDIR | 0o755)
    for path, text in files.items():
        *parents, name = path.split("/")
        directory = root
        for parent in parents:
            directory = directory.children.setdefault(parent, MemoryNode(stat.S_IFDIR | 0o755))
        kind = stat.S_IFLNK if text.startswith("->") else stat.S_IFREG
        directory.children[name] = MemoryNode(kind | 0o644, text.removeprefix("->").encode())
    return root
