"""The facts of a disk that checks ask for, each read once, when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.platforms import PLATFORM_ARGUMENT
from image_service.toolkit.inspection.content import read_content
from image_service.toolkit.validation.boot_entry import (
    FIRST_BOOT_VARIABLE,
    InitrdContent,
    find_boot_entry,
    read_initrd,
)
from image_service.toolkit.validation.root_files import system_roots
from image_service.toolkit.validation.verdicts import CannotTell
from image_service.toolkit.validation.windows import read_windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.inspection.content import DiskContent
    from image_service.toolkit.validation.platforms import Platform
    from image_service.toolkit.validation.windows import WindowsFacts
    from image_service.toolkit.workspace.workspace import Workspace

_Value = TypeVar("_Value")


class DiskFacts:
    """The known facts of a disk; a method raises CannotTell, or FormatError for damage.

    Args:
        platform: whose drivers are looked for.
    """

    def __init__(self, image: DiskImage, platform: Platform, workspace: Workspace) -> None:
        self.image = image
        self.content: DiskContent = read_content(image.disk)
        self._platform = platform
        self._workspace = workspace
        self.entry = _once(lambda: find_boot_entry(self.content.volumes))
        self.initrd = _once(self._read_initrd)
        self.windows = _once(self._read_windows)
        self.roots = _once(self._find_roots)

    def is_coreos(self) -> bool:
        """Return True if the boot entry is CoreOS's."""
        entry = self.entry()
        return bool(entry.values(PLATFORM_ARGUMENT)) or FIRST_BOOT_VARIABLE in entry.choice.written.split()

    def _read_initrd(self) -> InitrdContent:
        entry = self.entry()
        if not entry.choice.initrds:
            raise CannotTell("the boot entry has no initrd: its drivers are built into the kernel")
        groups = (*self._platform.storage_drivers, *self._platform.network_drivers)
        wanted = frozenset(name for group in groups for name in group)
        content = InitrdContent()
        for path in entry.initrds:
            read_at, _ = entry.open(path)
            content |= read_initrd(read_at, f"the initrd {path}", wanted, self._workspace.check)
        return content

    def _read_windows(self) -> WindowsFacts:
        services = frozenset((*self._platform.windows_storage, *self._platform.windows_network))
        return read_windows(self.image.disk, self.content.volumes, services, self._workspace)

    def _find_roots(self) -> tuple[TreeNode, ...]:
        if roots := tuple(system_roots(self.content.volumes)):
            return roots
        kinds = {each.file_system.kind for each in self.content.volumes if each.file_system and not each.root}
        raise CannotTell(
            "no file system with an operating system can be read without a mount"
            + (f"; the disk has {', '.join(sorted(kinds))}" if kinds else "")
        )


def _once(compute: Callable[[], _Value]) -> Callable[[], _Value]:
    """Return a function that computes once; CannotTell and FormatError are remembered too."""
    values: list[_Value] = []
    errors: list[CannotTell | BaseImageError] = []

    def get() -> _Value:
        if errors:
            raise errors[0]
        if not values:
            try:
                values.append(compute())
            except (CannotTell, BaseImageError) as error:
                errors.append(error)
                raise
        return values[0]

    return get
