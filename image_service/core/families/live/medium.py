"""A live ISO as its families see it: files, the label, and the FAT file systems that UEFI boots from."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.partition_types import EFI_SYSTEM, MBR_EFI_SYSTEM
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.filesystems.el_torito import EFI, read_boot_images
from image_service.core.formats.filesystems.fat_edit import FatEditor
from image_service.core.formats.iso_edit.editor import IsoEditor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.extents import ExtentMap
    from image_service.core.formats.reading import Span

_MAX_READ = 1 << 20  # bytes of a file: configurations and descriptions have less


@attrs.frozen(eq=False)
class EfiImage:
    """A FAT file system of the ISO, and where it begins."""

    offset: int
    fat: FatEditor


class LiveMedium:
    """An ISO.

    Raises:
        FormatError: it cannot be edited; says why.
    """

    def __init__(self, base: ExtentMap) -> None:
        self.base = base
        self.editor = IsoEditor(base)

    @property
    def volume_id(self) -> str:
        """The label, without padding."""
        return self.editor.volume_id

    def read(self, path: str) -> bytes | None:
        """Return a file, in any case of its name; None if it is absent or has more than 1 MiB."""
        spelled = self.spell(path)
        found = self.editor.find(spelled) if spelled else None
        return found.read_at(0, found.size) if found and found.size <= _MAX_READ else None

    def text(self, path: str) -> str:
        """Return a file as text; "" if it is absent."""
        return (self.read(path) or b"").decode(errors="replace")

    def list(self, path: str = "") -> tuple[str, ...]:
        """Return the names in a directory; none if it is absent."""
        return tuple(self._entries(path))

    def locate(self, path: str) -> Span | None:
        """Return where a file lies, in any case of its name; None if it is absent or in several runs."""
        spelled = self.spell(path)
        return self.editor.locate(spelled) if spelled else None

    def find_all(self, pattern: str) -> Iterator[Span]:
        """Yield the files whose names match a pattern, in any case, in a directory that is spelled out."""
        directory, name = posixpath.split(pattern)
        spelled = self.spell(directory) if directory else ""
        for each in self.list(spelled) if spelled is not None else ():
            if fnmatchcase(each.casefold(), name.casefold()):
                found = self.editor.locate(posixpath.join(spelled or "", each))
                if found is not None:
                    yield found

    def has(self, *paths: str) -> bool:
        """Return True if all of the files and directories are there, in any case of their names."""
        return all(self.spell(path) is not None for path in paths)

    def spell(self, path: str) -> str | None:
        """Return a path as the ISO spells it; None if it is absent."""
        spelled = ""
        for name in path.strip("/").split("/"):
            entries = self._entries(spelled)
            matching = [entry for entry in entries if entry.casefold() == name.casefold()]
            if not matching:
                return None
            spelled = f"{spelled}/{name if name in entries else matching[0]}".lstrip("/")
        return spelled

    @cached_property
    def efi_images(self) -> tuple[EfiImage, ...]:
        """The FAT file systems that UEFI loads its programs from: boot images of a CD, and partitions."""
        base = self.base
        offsets = {each.offset for each in read_boot_images(base.read_at, base.size) if each.platform == EFI}
        try:
            table = read_partitions(base.read_at, base.size)
        except FormatError:
            table = None
        if table:
            offsets |= {each.offset for each in table.partitions if each.type in {EFI_SYSTEM, MBR_EFI_SYSTEM}}
        found = []
        for offset in sorted(offsets):
            read_at = lambda at, length, start=offset: base.read_at(start + at, length)  # noqa: E731
            try:
                found.append(EfiImage(offset, FatEditor(read_at, base.size - offset)))
            except FormatError:  # an EFI program alone, or an image without a file system
                continue
        return tuple(found)

    @property
    def unified_kernels(self) -> tuple[str, ...]:
        """The paths of kernels that firmware starts as programs, in the FAT file systems."""
        names = (name for image in self.efi_images for name in image.fat.list("EFI/Linux") or ())
        return tuple(f"EFI/Linux/{name}" for name in names if name.casefold().endswith(".efi"))

    def _entries(self, path: str) -> Mapping[str, bool]:
        return self.editor.list(path) or {}
