"""Small ext2, ext3 and ext4 file systems, made by mkfs.ext4 from a tree."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.file_systems import noise, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.formats.filesystems.file_tree import TreeNode

RHCOS = "-t ext4 -b 4096 -O metadata_csum,64bit -L boot"
"""The features of CoreOS's boot partition."""

UUID = "01234567-89ab-cdef-0123-456789abcdef"
FILES = {
    "empty": b"",
    "short": b"short",
    "sixty": noise(60),
    "sixty-one": noise(61),
    "hundred": noise(100),
    **{f"sizes/{size}": noise(size) for size in (1023, 1024, 1025, 4095, 4096, 4097, 12 * 1024 + 1, 300_000)},
    "a/b/c/d/e/\N{LATIN SMALL LETTER A WITH DIAERESIS}": b"deep",
    "loader.1/entries/ostree-1.conf": b"title CoreOS\n",
    **{f"many/{'n' * 100}{number}": b"%d" % number for number in range(300)},
}


def make_tree(directory: Path) -> Path:
    """Return a tree with files, holes and symlinks; mkfs.ext4 with inline data drops holes at the end."""
    tree = write_tree(directory / "tree", FILES)
    (tree / "loader").symlink_to("loader.1")
    (tree / "slow").symlink_to("./" * 40 + "loader.1")
    (tree / "very-slow").symlink_to("./" * 450 + "loader.1")
    (tree / "empty-directory").mkdir()
    with (tree / "holes").open("wb") as file:
        for position in (5_000, 400_000, 2_000_000):
            file.seek(position)
            file.write(noise(3_000))
    return tree


def make_ext(directory: Path, tree: Path, options: str, size: str = "16M") -> bytes:
    """Return a file system with the files of a tree."""
    image = directory / "ext.img"
    image.unlink(missing_ok=True)
    run_client("mkfs.ext4", "-q", "-F", "-U", UUID, "-d", tree, *options.split(), image, size)
    return image.read_bytes()


def list_tree(root: Path) -> dict[str, object]:
    """Return by path the content of each file, the target of each symlink, and None for directories."""
    return {
        str(path.relative_to(root)): (
            ("symlink", os.readlink(path).encode())  # noqa: PTH115 - Path drops "./"
            if path.is_symlink()
            else None
            if path.is_dir()
            else path.read_bytes()
        )
        for path in root.rglob("*")
    }


def list_nodes(root: TreeNode) -> dict[str, object]:
    """Return the same of a file system."""
    found: dict[str, object] = {}

    def walk(node: TreeNode, path: str) -> None:
        for name, read_node in node.entries().items():
            child, where = read_node(), f"{path}{name}"
            if stat.S_ISDIR(child.mode):
                found[where] = None
                walk(child, f"{where}/")
            else:
                found[where] = ("symlink", child.read()) if stat.S_ISLNK(child.mode) else child.read()

    walk(root, "")
    found.pop("lost+found", None)
    return found
