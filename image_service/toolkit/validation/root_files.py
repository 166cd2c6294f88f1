"""Files of the operating systems on a disk, read within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.ext4 import Ext4Node
from image_service.core.formats.filesystems.fat import FatNode
from image_service.core.formats.filesystems.file_tree import find_node, find_optional
from image_service.toolkit.validation.verdicts import CannotTell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.core.formats.reading import ReadAt
    from image_service.toolkit.inspection.content import Volume

MAX_TEXT = 1024 * 1024


def read_text(root: TreeNode, path: str) -> str | None:
    """Return a file of at most 1 MiB; None if there is none."""
    node = find_optional(root, path)
    if node is None:
        return None
    if node.size > MAX_TEXT:
        raise FormatError(f"{path} has {node.size} bytes, more than {MAX_TEXT}")
    return node.read().decode(errors="replace")


def has_file(root: TreeNode, path: str) -> bool:
    """Return True if there is such a name; a symlink may lead to another file system, which is not read."""
    directory, _, name = path.rpartition("/")
    try:
        parent = find_optional(root, directory)
        return parent is not None and name in parent.entries()
    except FormatError:
        return True


def read_parts(node: TreeNode, path: str) -> ReadAt:
    """Return a reader of a file, which is never in memory as a whole."""
    if not isinstance(node, Ext4Node | FatNode):
        raise CannotTell(f"{path} is in a file system whose files cannot be read in parts")
    file = node
    return lambda offset, length: (
        file.read_part(offset, min(length, file.size - offset)) if offset < file.size else b""
    )


@attrs.frozen(eq=False)
class RootWithUsr:
    """The root of a system whose /usr is another file system."""

    root: TreeNode
    usr: TreeNode

    @property
    def mode(self) -> int:
        """File type and permissions of the root."""
        return self.root.mode

    @property
    def size(self) -> int:
        """Bytes of the root's listing."""
        return self.root.size

    def read(self) -> bytes:
        """Return the root's content."""
        return self.root.read()

    def entries(self) -> Mapping[str, Callable[[], TreeNode]]:
        """Return the root's entries, in which usr is the other file system."""
        return {**self.root.entries(), "usr": lambda: self.usr}


def system_roots(volumes: Iterable[Volume]) -> Iterator[TreeNode]:
    """Yield the directories with an operating system: roots of volumes, and deployments of ostree.

    A root with an empty usr gets that of the file system that looks like one.
    """
    trees = [volume.root for volume in volumes if volume.root]
    usr = next((root for root in trees if _is_usr(root)), None)
    for root in trees:
        names = root.entries().keys()
        if names & {"usr", "etc"}:
            yield RootWithUsr(root, usr) if usr and "etc" in names and not has_usr(root) else root
        yield from _deployments(root)


def has_usr(root: TreeNode) -> bool:
    """Return True unless /usr is empty or missing: it is another file system then."""
    usr = find_optional(root, "usr")
    return usr is not None and bool(usr.entries().keys() - {"lost+found"})


def _is_usr(root: TreeNode) -> bool:
    return "etc" not in root.entries() and find_optional(root, "lib/os-release") is not None


def _deployments(root: TreeNode) -> Iterator[TreeNode]:
    try:
        systems = find_node(root, "ostree/deploy").entries()
        for system in systems:
            deployments = find_node(root, f"ostree/deploy/{system}/deploy").entries()
            yield from (read() for name, read in deployments.items() if not name.endswith(".origin"))
    except FileNotInImage:
        return
