"""The live system's root file system, one program of which is needed: nmstatectl.

`images/pxeboot/rootfs.img` is an uncompressed cpio archive. One of its members, the first in all known
images, is a squashfs or an erofs with nmstatectl in an OSTree deployment,
`ostree/deploy/<os>/deploy/<checksum>.<serial>`. It is read in place: of some GiB, only the nodes on the path.
"""

from __future__ import annotations

import re
import stat
import sys
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.erofs import EROFS_MAGIC, EROFS_OFFSET, read_erofs
from image_service.core.formats.filesystems.file_tree import find_node, find_optional
from image_service.core.formats.filesystems.squashfs import SQUASHFS_MAGIC, read_squashfs
from image_service.core.formats.initrd import compress_archive
from image_service.core.formats.newc import Member, locate_members, write_archive
from image_service.core.formats.reading import SpanReader

if TYPE_CHECKING:
    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.core.formats.reading import ReadAt, Span

_NMSTATECTL = "usr/bin/nmstatectl"
_FILE_SYSTEMS = ("root.squashfs", "root.erofs")
_DEPLOYMENTS = "ostree/deploy"
_SYSTEM, _DEPLOYMENT = re.compile(r".+"), re.compile(r"[0-9a-f]{64}\.[0-9]+")
_MAX_NAMES = 4  # of systems, and of deployments of each, that are searched; live systems have one
_MAX_EXECUTABLE = 128 * 1024 * 1024  # bytes; real ones have some 20 million
_EXECUTABLE = stat.S_IFREG | 0o755


def read_nmstatectl(read_at: ReadAt, rootfs: Span) -> bytes:
    """Return nmstatectl from the root file system of an image; FileNotInImage if it is not there."""
    root = _read_root(read_at, rootfs)
    deployments = (
        f"{_DEPLOYMENTS}/{system}/deploy/{deployment}/"
        for system in _list_names(root, _DEPLOYMENTS, _SYSTEM)
        for deployment in _list_names(root, f"{_DEPLOYMENTS}/{system}/deploy", _DEPLOYMENT)
    )
    for prefix in chain([""], deployments):
        with suppress(FileNotInImage):
            node = find_node(find_node(root, prefix), _NMSTATECTL)
            break
    else:
        raise FileNotInImage(
            f"no {_NMSTATECTL} in {rootfs.path}, neither at its root nor below {_DEPLOYMENTS}"
        )
    if not stat.S_ISREG(node.mode) or node.size > _MAX_EXECUTABLE:
        raise FormatError(
            f"nmstatectl in {rootfs.path} is not a regular file of at most {_MAX_EXECUTABLE} bytes:"
            f" mode {node.mode:o}, {node.size} bytes"
        )
    return node.read()


def nmstate_archive(executable: bytes) -> bytes:
    """Return an initrd with nmstatectl: stored gzip, the same bytes on every machine (decision 6)."""
    archive = write_archive([Member(_NMSTATECTL, executable, _EXECUTABLE)])
    return compress_archive(archive, capacity=sys.maxsize)


def _read_root(read_at: ReadAt, rootfs: Span) -> TreeNode:
    for member in locate_members(read_at, rootfs):
        if member.path not in _FILE_SYSTEMS:
            continue
        # The magic number shows the format; the name may not.
        reader = SpanReader(read_at, member)
        if reader(0, len(SQUASHFS_MAGIC)) == SQUASHFS_MAGIC:
            return read_squashfs(reader)
        if reader(EROFS_OFFSET, len(EROFS_MAGIC)) == EROFS_MAGIC:
            return read_erofs(reader)
        raise FormatError(f"{member.path} is neither squashfs nor erofs")
    raise FileNotInImage(f"{rootfs.path} contains neither {' nor '.join(_FILE_SYSTEMS)}")


def _list_names(root: TreeNode, path: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the first few matching names in a directory; none if it is not there."""
    directory = find_optional(root, path)
    if directory is None or not stat.S_ISDIR(directory.mode):
        return []
    return sorted(filter(pattern.fullmatch, directory.entries()))[:_MAX_NAMES]
