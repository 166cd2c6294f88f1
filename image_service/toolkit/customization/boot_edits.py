"""Plans the edits of the file system of the boot partition: new files, and parts of files.

All is as by coreos-installer: the config and its directory are for root alone, the boot loader's entry is
edited and not written anew, and a further archive is appended to the initramfs.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, TypeAlias, cast

import attrs

from image_service.core.errors import FormatError, NotCustomizable
from image_service.core.families.coreos.bls import ENTRIES, find_default_entry, read_entry, replace_options
from image_service.core.families.coreos.ignition import CONFIG_FILE, FIRST_BOOT_FILE
from image_service.core.families.coreos.kargs import edit_arguments
from image_service.core.families.coreos.network_keyfiles import KEYFILE_DIRECTORY, pack_keyfiles
from image_service.core.families.coreos.platforms import (
    CONSOLE_FILES,
    METAL,
    PLATFORMS_FILE,
    PlatformConsoles,
    is_named,
    read_platforms,
    replace_console_commands,
    set_platform,
)
from image_service.core.formats.filesystems.file_tree import find_node, find_optional

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.formats.filesystems.ext4 import Ext4Node
    from image_service.toolkit.customization.disk_customization import DiskCustomization

_SECRET_FILE, _SECRET_DIRECTORY, _DIRECTORY = 0o600, 0o700, 0o755
_MAX_TEXT = 1024 * 1024  # bytes of a configuration file


@attrs.frozen
class NewDirectory:
    """A directory of root's: its path, which exists up to its name, and its permissions."""

    path: str
    mode: int


@attrs.frozen
class NewFile:
    """A file of root's: its path, its content and its permissions."""

    path: str
    content: bytes = attrs.field(repr=False)
    mode: int = _SECRET_FILE


@attrs.frozen
class ChangedFile:
    """A file whose content is other from an offset on, and ends with it; its other properties stay.

    Args:
        path: for messages.
        old_size: bytes.
        offset: of the new content, at most the old size.
        content: from there to the new end.
    """

    path: str
    inode: int
    old_size: int
    offset: int
    content: bytes = attrs.field(repr=False)

    @property
    def size(self) -> int:
        """Return the bytes that the file will have."""
        return self.offset + len(self.content)


BootEdit: TypeAlias = NewDirectory | NewFile | ChangedFile


def plan_edits(root: Ext4Node, customization: DiskCustomization) -> list[BootEdit]:
    """Return the edits of a boot partition, directories before their files.

    Raises:
        NotCustomizable: it has a config, has booted, or is not CoreOS's.
        FormatError: it is damaged.
        KernelArgumentInvalid: the kernel arguments would be invalid.
    """
    if _find(root, CONFIG_FILE):
        raise NotCustomizable(f"a config is already there: /{CONFIG_FILE} of the boot partition")
    if not _find(root, FIRST_BOOT_FILE):
        raise NotCustomizable(
            f"the boot partition has no /{FIRST_BOOT_FILE}: the disk has booted, and would ignore the config,"
            " or it is none of CoreOS"
        )
    config = customization.ignition
    edits = [
        *(() if config is None else _new_files(root, {CONFIG_FILE: config}, _SECRET_DIRECTORY)),
        *_edit_boot_loader(root, customization),
        *_add_keyfiles(root, customization.keyfiles),
    ]
    changed: dict[int, str] = {}
    for edit in edits:
        if isinstance(edit, ChangedFile):
            if other := changed.get(edit.inode):
                raise FormatError(f"/{other} and /{edit.path} of the boot partition are one file")
            if _find_node(root, edit.path).is_inline:
                raise NotCustomizable(
                    f"/{edit.path} of the boot partition is stored in its inode, and cannot be changed there:"
                    " make the file system without ext4's inline_data, as CoreOS does"
                )
            changed[edit.inode] = edit.path
    return edits


def check_edits(root: Ext4Node, edits: list[BootEdit]) -> None:
    """Raise FormatError unless a boot partition has all of the edits."""
    for edit in edits:
        node = _find_node(root, edit.path)
        is_type = stat.S_ISDIR if isinstance(edit, NewDirectory) else stat.S_ISREG
        is_right = is_type(node.mode)
        if not isinstance(edit, ChangedFile):
            is_right = is_right and stat.S_IMODE(node.mode) == edit.mode
        if isinstance(edit, NewFile):
            is_right = is_right and node.size == len(edit.content) and node.read() == edit.content
        if isinstance(edit, ChangedFile):
            written = node.read_part(edit.offset, len(edit.content)) if node.size == edit.size else None
            is_right = is_right and node.number == edit.inode and written == edit.content
        if not is_right:
            raise FormatError(f"/{edit.path} of the boot partition is not what was written")


def _edit_boot_loader(root: Ext4Node, customization: DiskCustomization) -> Iterator[BootEdit]:
    """Yield the changes of the default entry and of GRUB's consoles."""
    path, node = _find_entry(root)
    content = _read_text(node, path)
    old_options = options = read_entry(content).options
    platform = customization.platform
    if platform is not None and not is_named(options, platform):
        file = _find(root, PLATFORMS_FILE)
        consoles = {} if file is None else read_platforms(_read_text(file, PLATFORMS_FILE))
        before, after = (consoles.get(name, PlatformConsoles()) for name in (METAL, platform))
        options = set_platform(options, platform, before, after)
        if before.grub_commands != after.grub_commands:
            yield from _edit_grub(root, after)
    options = edit_arguments(options, customization.edits)
    if options != old_options:
        yield ChangedFile(path, node.number, node.size, 0, replace_options(content, options))


def _edit_grub(root: Ext4Node, consoles: PlatformConsoles) -> Iterator[BootEdit]:
    path = next((path for path in CONSOLE_FILES if _find(root, path)), CONSOLE_FILES[-1])
    node = _find_node(root, path)
    content = _read_text(node, path)
    yield ChangedFile(
        path, node.number, node.size, 0, replace_console_commands(content, consoles.grub_commands)
    )


def _add_keyfiles(root: Ext4Node, keyfiles: Mapping[str, bytes]) -> Iterator[BootEdit]:
    """Yield the files in the boot partition, and the archive after its initramfs."""
    if not keyfiles:
        return
    files = {f"{KEYFILE_DIRECTORY}/{name}": content for name, content in sorted(keyfiles.items())}
    yield from _new_files(root, files, _DIRECTORY)
    entry_path, entry = _find_entry(root)
    path = read_entry(_read_text(entry, entry_path)).initramfs.lstrip("/")
    node = _find_node(root, path)
    _check_file(node, path)
    yield ChangedFile(path, node.number, node.size, node.size, pack_keyfiles(keyfiles))


def _new_files(root: Ext4Node, files: Mapping[str, bytes], directory_mode: int) -> Iterator[BootEdit]:
    """Yield files of one directory, and the directory if it is not there."""
    directory = next(iter(files)).rpartition("/")[0]
    node = root.entries().get(directory)
    if node is None:
        yield NewDirectory(directory, directory_mode)
    elif not stat.S_ISDIR(node().mode):
        raise NotCustomizable(f"/{directory} of the boot partition is not a directory")
    for path, content in files.items():
        if _find(root, path):
            raise NotCustomizable(f"/{path} of the boot partition is already there")
        yield NewFile(path, content)


def _find_entry(root: Ext4Node) -> tuple[str, Ext4Node]:
    """Return path and node of the entry that boots by default."""
    directory = _find(root, ENTRIES)
    if directory is None:
        raise NotCustomizable(f"not a CoreOS disk: the boot partition has no /{ENTRIES}")
    name = find_default_entry(directory.entries())
    return f"{ENTRIES}/{name}", _find_node(directory, name)


def _find_node(root: Ext4Node, path: str) -> Ext4Node:
    return cast("Ext4Node", find_node(root, path))


def _find(root: Ext4Node, path: str) -> Ext4Node | None:
    return cast("Ext4Node | None", find_optional(root, path))


def _read_text(node: Ext4Node, path: str) -> bytes:
    _check_file(node, path)
    if node.size > _MAX_TEXT:
        raise FormatError(f"/{path} of the boot partition has {node.size} bytes, more than {_MAX_TEXT}")
    return node.read()


def _check_file(node: Ext4Node, path: str) -> None:
    if not stat.S_ISREG(node.mode):
        raise FormatError(f"/{path} of the boot partition is not a file")
