"""The system that a disk boots: the default entry of its boot loader, and the content of its initrds."""

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.efi_program import read_efi_sections
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.initrd_stream import stream_initrd
from image_service.toolkit.validation.boot_menus import find_boot_choice
from image_service.toolkit.validation.root_files import MAX_TEXT, read_parts
from image_service.toolkit.validation.verdicts import CannotTell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from image_service.core.formats.reading import ReadAt, Span
    from image_service.toolkit.inspection.content import Volume
    from image_service.toolkit.validation.boot_menus import BootChoice

_MODULE = re.compile(r"(?:usr/)?lib/modules/[^/]+/.*?(?P<name>[^/]+)\.ko(?:\.(?:gz|xz|zst))?")
_IGNITION = re.compile(r"(?:.*/)?(?:bin|30ignition)/ignition")
_BUILTIN = re.compile(r"(?:usr/)?lib/modules/[^/]+/modules\.builtin")
FIRST_BOOT_VARIABLE = "$ignition_firstboot"
"""GRUB's variable in CoreOS's entries: arguments of Ignition and of its network, and no others."""

_UNKNOWN = "$"  # begins a variable of GRUB whose value is not on the disk


@attrs.frozen(eq=False)
class BootEntry:
    """The entry that boots by default."""

    choice: BootChoice

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernel arguments; an unknown variable is in them as ``$NAME``."""
        return tuple(word for word in self.choice.arguments if word != FIRST_BOOT_VARIABLE)

    @property
    def initrds(self) -> tuple[str, ...]:
        """Paths in the volume, in the order in which the kernel unpacks them, as far as they are known."""
        return tuple(path for path in self.choice.initrds if _UNKNOWN not in path)

    @property
    def has_unknown_initrds(self) -> bool:
        """Return True if a variable that is not known may name further initrds."""
        return any(_UNKNOWN in path for path in self.choice.initrds)

    def values(self, key: str) -> list[str]:
        """Return the known values of a kernel argument, in order."""
        return [value for name, _, value in (word.partition("=") for word in self.arguments) if name == key]

    def last(self, key: str) -> str | None:
        """Return the last value of a kernel argument; None: there is none.

        Raises:
            CannotTell: a variable behind it, or anywhere if there is none, may have another.
        """
        for position, word in reversed(list(enumerate(self.arguments))):
            name, _, value = word.partition("=")
            if name == key:
                self.require_known(position)
                return value
        self.require_known()
        return None

    def require_known(self, start: int = 0) -> None:
        """Raise CannotTell if an argument, from a position on, is in a variable that is not known."""
        unknown = next((word for word in self.arguments[start:] if _UNKNOWN in word), None)
        if unknown:
            raise CannotTell(f"the kernel arguments have {unknown:.80}, which is set elsewhere")

    def open(self, path: str) -> tuple[ReadAt, int]:
        """Return a reader of a file in the volume, or of a section of the unified kernel, and its size."""
        root = self.choice.volume.root
        if root is None or _UNKNOWN in path:
            raise CannotTell("the files of the volume cannot be read")
        image = self.choice.image
        node = find_node(root, image or path)
        read_at = read_parts(node, image or path)
        if not image:
            return read_at, node.size
        section = read_efi_sections(read_at, node.size)[path]
        return partial(_read_section, read_at, section), section.length


@attrs.frozen
class InitrdContent:
    """The content of an initrd, or of several.

    Args:
        modules: those among the wanted ones that are files, with underscores.
        builtin: those among the wanted ones that are built into the kernel; None: the initrd does not tell.
        has_modules: it has any module.
        has_ignition: it has the program Ignition.
    """

    modules: frozenset[str] = frozenset()
    builtin: frozenset[str] | None = None
    has_modules: bool = False
    has_ignition: bool = False

    def __or__(self, other: InitrdContent) -> InitrdContent:
        """Return the content of both, one unpacked over the other."""
        told = [each for each in (self.builtin, other.builtin) if each is not None]
        return InitrdContent(
            self.modules | other.modules,
            frozenset().union(*told) if told else None,
            self.has_modules or other.has_modules,
            self.has_ignition or other.has_ignition,
        )


def _read_section(read_at: ReadAt, section: Span, offset: int, length: int) -> bytes:
    return read_at(section.offset + offset, max(0, min(length, section.length - offset)))


def find_boot_entry(volumes: Sequence[Volume]) -> BootEntry:
    """Return the entry that boots by default: of GRUB, or of systemd-boot.

    Raises:
        CannotTell: no file system that can be read has one, and names those that cannot; or the choice
            depends on data that this program does not read.
    """
    if choice := find_boot_choice(volumes):
        return BootEntry(choice)
    unreadable = {each.file_system.kind for each in volumes if each.file_system and not each.root}
    raise CannotTell(
        "no entry of a boot loader was found in the file systems that can be read"
        + (f"; those of {', '.join(sorted(unreadable))} cannot be read" if unreadable else "")
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
            paths = member.read(MAX_TEXT).decode(errors="replace").split()
            names = {PurePosixPath(path).name.partition(".")[0].replace("-", "_") for path in paths}
            builtin = wanted & names
        elif _IGNITION.fullmatch(member.name):
            has_ignition = True
    return InitrdContent(frozenset(modules), builtin, has_modules, has_ignition)
