"""The live system's root file system, of which one program is needed: nmstatectl.

`images/pxeboot/rootfs.img` is a cpio archive that is not compressed. One of its members, the first as far as
is known, is a squashfs or an erofs. In that, nmstatectl lies below an OSTree deployment,
`ostree/deploy/<os>/deploy/<checksum>.<serial>`. All of it is read where it is: of some GiB only what lies on
the path.
"""

from __future__ import annotations

import re
import stat
import sys
from typing import TYPE_CHECKING

from image_service.errors import FileNotInImage, FormatError
from image_service.formats.erofs import EROFS_MAGIC, EROFS_OFFSET, read_erofs
from image_service.formats.file_tree import FileWindow, find_node
from image_service.formats.initrd import compress_archive
from image_service.formats.newc import Member, locate_members, write_archive
from image_service.formats.squashfs import SQUASHFS_MAGIC, read_squashfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.formats.file_tree import TreeNode
    from image_service.formats.iso9660 import IsoFile
    from image_service.formats.reading import ReadAt

_NMSTATECTL = "usr/bin/nmstatectl"
_FILE_SYSTEMS = ("root.squashfs", "root.erofs")
_DEPLOYMENTS = "ostree/deploy"
_SYSTEM, _DEPLOYMENT = re.compile(r".+"), re.compile(r"[0-9a-f]{64}\.[0-9]+")
_MAX_NAMES = 4  # of systems, and of deployments of each, that are looked into; live systems have one
_MAX_EXECUTABLE = 128 * 1024 * 1024  # bytes; real ones have some 20 million
_EXECUTABLE = stat.S_IFREG | 0o755


def read_nmstatectl(read_at: ReadAt, rootfs: IsoFile) -> bytes:
    """Read nmstatectl out of the root file system, in place.

    Args:
        read_at: reads the image.
        rootfs: the extent of `images/pxeboot/rootfs.img`.

    Returns:
        the program.

    Raises:
        FileNotInImage: there is no file system in the archive, or no nmstatectl in it.
        FormatError: what lies on the path is damaged, too large or in a form that is not read.
    """
    node = _find_nmstatectl(_root(read_at, rootfs), rootfs)
    if not stat.S_ISREG(node.mode) or node.size > _MAX_EXECUTABLE:
        raise FormatError(
            f"nmstatectl in {rootfs.path} is no file of up to {_MAX_EXECUTABLE} bytes:"
            f" mode {node.mode:o}, {node.size} bytes"
        )
    return node.read()


def nmstate_archive(executable: bytes) -> bytes:
    """Make the initrd that brings nmstatectl.

    Args:
        executable: the program.

    Returns:
        gzip, not compressed (see docs/decisions/0006-reading-the-rootfs.md): the same bytes on every machine.
    """
    archive = write_archive([Member(_NMSTATECTL, executable, _EXECUTABLE)])
    return compress_archive(archive, capacity=sys.maxsize)


def _root(read_at: ReadAt, rootfs: IsoFile) -> TreeNode:
    for member in locate_members(read_at, rootfs):
        if member.path in _FILE_SYSTEMS:
            return _read_file_system(FileWindow(read_at, member))
    raise FileNotInImage(f"{rootfs.path} holds neither {' nor '.join(_FILE_SYSTEMS)}")


def _read_file_system(window: FileWindow) -> TreeNode:
    """Its contents tell what it is, whatever its name."""
    if window(0, len(SQUASHFS_MAGIC)) == SQUASHFS_MAGIC:
        return read_squashfs(window)
    if window(EROFS_OFFSET, len(EROFS_MAGIC)) == EROFS_MAGIC:
        return read_erofs(window)
    raise FormatError(f"{window.file.path} is neither squashfs nor erofs")


def _find_nmstatectl(root: TreeNode, rootfs: IsoFile) -> TreeNode:
    for path in _candidates(root):
        try:
            return find_node(root, path)
        except FileNotInImage:
            continue
    raise FileNotInImage(f"no {_NMSTATECTL} in {rootfs.path}, neither at its root nor below {_DEPLOYMENTS}")


def _candidates(root: TreeNode) -> Iterator[str]:
    yield _NMSTATECTL
    for system in _names(root, _DEPLOYMENTS, _SYSTEM):
        deployments = f"{_DEPLOYMENTS}/{system}/deploy"
        for deployment in _names(root, deployments, _DEPLOYMENT):
            yield f"{deployments}/{deployment}/{_NMSTATECTL}"


def _names(root: TreeNode, path: str, pattern: re.Pattern[str]) -> list[str]:
    """The first few names in a directory that match; none where there is no directory."""
    try:
        directory = find_node(root, path)
    except FileNotInImage:
        return []
    if not stat.S_ISDIR(directory.mode):
        return []
    return sorted(filter(pattern.fullmatch, directory.entries()))[:_MAX_NAMES]
