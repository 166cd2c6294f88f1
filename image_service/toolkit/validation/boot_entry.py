"""The system that a disk boots: the newest entry of its boot loader, and the content of its initrd."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.families.coreos.bls import find_default_entry, read_entry
from image_service.core.formats.filesystems.ext4 import Ext4Node
from image_service.core.formats.filesystems.fat import FatNode
from image_service.core.formats.filesystems.file_tree import find_node, find_optional
from image_service.core.formats.initrd_stream import stream_initrd
from image_service.toolkit.validation.verdicts import CannotTell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.core.formats.reading import ReadAt
    from image_service.toolkit.inspection.content import Volume

_MAX_TEXT = 1024 * 1024
_DIRECTORIES = ("", "boot/")
_GRUB_CONFIGS = ("grub2/grub.cfg", "grub/grub.cfg")
_GRUB_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+(?:\(\S*?\))?(?P<kernel>\S+)(?P<options>.*)$", re.MULTILINE)
_GRUB_INITRD = re.compile(r"^\s*initrd(?:16|efi)?\s+(?:\(\S*?\))?(?P<initrd>\S+)", re.MULTILINE)
_MODULE = re.compile(r"(?:usr/)?lib/modules/[^/]+/.*?(?P<name>[^/]+)\.ko(?:\.(?:gz|xz|zst))?")
_IGNITION = re.compile(r"(?:.*/)?(?:bin|30ignition)/ignition")
_BUILTIN = re.compile(r"(?:usr/)?lib/modules/[^/]+/modules\.builtin")


@attrs.frozen(eq=False)
class BootEntry:
    """An entry of a boot loader.

    Args:
        volume: with kernel and initrd.
        kernel: path in the volume.
        initrd: path in the volume; "" if there is none.
    """

    volume: Volume
    kernel: str
    initrd: str
    arguments: tuple[str, ...]

    def values(self, key: str) -> list[str]:
        """Return the values of a kernel argument, in order."""
        return [value for name, _, value in (word.partition("=") for word in self.arguments) if name == key]

    def open(self, path: str) -> tuple[ReadAt, int]:
        """Return a reader of a file in the volume, and its size."""
        node = find_node(_root(self.volume), path)
        return read_parts(node, path), node.size


@attrs.frozen
class InitrdContent:
    """The content of an initrd.

    Args:
        modules: those among the wanted ones that are files, with underscores.
        builtin: those among the wanted ones that are built into the kernel; None: the initrd does not tell.
        has_modules: it has any module.
        has_ignition: it has the program Ignition.
    """

    modules: frozenset[str]
    builtin: frozenset[str] | None
    has_modules: bool
    has_ignition: bool


def find_boot_entry(volumes: Iterable[Volume]) -> BootEntry:
    """Return the entry that boots by default: of the Boot Loader Specification, or GRUB's first.

    Raises:
        CannotTell: no file system that can be read has one; names those that cannot.
    """
    unreadable = []
    for volume in volumes:
        if volume.root:
            for directory in _DIRECTORIES:
                if entry := _find_bls(volume, directory) or _find_grub(volume, directory):
                    return entry
        elif volume.file_system:
            unreadable.append(volume.file_system.kind)
    raise CannotTell(
        "no entry of a boot loader was found in the file systems that can be read"
        + (f"; those of {', '.join(sorted(set(unreadable)))} cannot be read" if unreadable else "")
    )


def read_initrd(
    read_at: ReadAt, name: str, wanted: frozenset[str], check: Callable[[], None]
) -> InitrdContent:
    """Return which of the wanted drivers an initrd has, and whether it has Ignition; reads it as a stream.

    Args:
        name: of the initrd, for messages.
        wanted: names of modules, with underscores.
        check: called for each file; raises to end the reading.
    """
    modules: set[str] = set()
    builtin: frozenset[str] | None = None
    has_modules = has_ignition = False
    for member in stream_initrd(read_at, name):
        check()
        if found := _MODULE.fullmatch(member.name):
            has_modules = True
            modules.add(found["name"].replace("-", "_"))
            modules &= wanted
        elif _BUILTIN.fullmatch(member.name):
            paths = member.read(_MAX_TEXT).decode(errors="replace").split()
            names = {PurePosixPath(path).name.partition(".")[0].replace("-", "_") for path in paths}
            builtin = wanted & names
        elif _IGNITION.fullmatch(member.name):
            has_ignition = True
    return InitrdContent(frozenset(modules), builtin, has_modules, has_ignition)


def read_text(root: TreeNode, path: str) -> str | None:
    """Return a file of at most 1 MiB; None if there is none."""
    node = find_optional(root, path)
    if node is None:
        return None
    if node.size > _MAX_TEXT:
        raise FormatError(f"{path} has {node.size} bytes, more than {_MAX_TEXT}")
    return node.read().decode(errors="replace")


def has_file(root: TreeNode, path: str) -> bool:
    """Return True if there is such a file; an absolute symlink cannot be followed, and counts as one."""
    try:
        return find_optional(root, path) is not None
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


def _find_bls(volume: Volume, directory: str) -> BootEntry | None:
    path = f"{directory}loader/entries"
    entries = find_optional(_root(volume), path)
    names = [name for name in entries.entries() if name.endswith(".conf")] if entries else []
    if not names:
        return None
    name = find_default_entry(names)
    text = read_text(_root(volume), f"{path}/{name}") or ""
    entry = read_entry(text.encode())
    return BootEntry(volume, entry.kernel, entry.initramfs, tuple(entry.options.split()))


def _find_grub(volume: Volume, directory: str) -> BootEntry | None:
    for name in _GRUB_CONFIGS:
        text = read_text(_root(volume), directory + name) or ""
        if linux := _GRUB_LINUX.search(text):
            initrd = _GRUB_INITRD.search(text, linux.end())
            return BootEntry(
                volume, linux["kernel"], initrd["initrd"] if initrd else "", tuple(linux["options"].split())
            )
    return None


def _root(volume: Volume) -> TreeNode:
    if volume.root is None:
        raise CannotTell("the files of the volume cannot be read")
    return volume.root


def system_roots(volumes: Iterable[Volume]) -> Iterator[TreeNode]:
    """Yield the directories with an operating system: roots of volumes, and deployments of ostree."""
    for volume in volumes:
        if volume.root and volume.root.entries().keys() & {"usr", "etc"}:
            yield volume.root
        if volume.root:
            yield from _deployments(volume.root)


def _deployments(root: TreeNode) -> Iterator[TreeNode]:
    try:
        systems = find_node(root, "ostree/deploy").entries()
        for system in systems:
            deployments = find_node(root, f"ostree/deploy/{system}/deploy").entries()
            yield from (read() for name, read in deployments.items() if not name.endswith(".origin"))
    except FileNotInImage:
        return
