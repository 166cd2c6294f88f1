"""The entry that a disk's boot loader starts by default: GRUB's or systemd-boot's.

Which of the two the firmware starts is not read. Where both have a menu they must agree.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError, UnreadScript
from image_service.core.formats.boot_loader.grub_menu import GrubMenu, MenuItem, parse_grub_environment
from image_service.core.formats.boot_loader.loader_entry import (
    ENTRY_SUFFIX,
    LOADER_CONFIG,
    LOADER_ENTRIES,
    LoaderEntry,
    find_systemd_default,
    grub_file_key,
    parse_loader_entry,
    sort_for_systemd,
)
from image_service.core.formats.filesystems.file_tree import find_node, find_optional
from image_service.toolkit.validation.root_files import read_text
from image_service.toolkit.validation.verdicts import CannotTell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.toolkit.inspection.content import Volume

_DIRECTORIES = ("", "boot/")
_GRUB_DIRECTORIES = ("grub2", "grub")
_MAX_ENTRIES = 64
_SEPARATOR = ">"  # between a submenu and its item, in GRUB's ``default``


@attrs.frozen(eq=False)
class BootChoice:
    """The default entry of a boot loader.

    Args:
        volume: with kernel and initrds.
        name: for messages.
        arguments: an unknown variable of GRUB is in them as ``$NAME``.
        written: the arguments as the configuration has them.
    """

    volume: Volume
    name: str
    kernel: str
    initrds: tuple[str, ...]
    arguments: tuple[str, ...]
    written: str

    def starts_same(self, other: BootChoice) -> bool:
        """Return True if both start the same kernel in the same way."""
        return self.volume is other.volume and (self.kernel, self.initrds, self.arguments) == (
            other.kernel,
            other.initrds,
            other.arguments,
        )


@attrs.frozen(eq=False)
class _Store:
    """A directory with entries of the Boot Loader Specification."""

    volume: Volume
    entries: tuple[LoaderEntry, ...]


def find_boot_choice(volumes: Sequence[Volume]) -> BootChoice | None:
    """Return the default entry in the file systems that can be read; None if they have none.

    Raises:
        CannotTell: there are entries, but the boot loader chooses by data that this program does not read.
    """
    trees = [(volume, volume.root) for volume in volumes if volume.root]
    stores = [
        store
        for volume, root in trees
        for directory in _DIRECTORIES
        if (store := _read_store(volume, root, directory))
    ]
    try:
        grub = _choose_in_grub(trees, stores)
    except UnreadScript as reason:
        raise CannotTell(reason.detail) from None
    systemd = _choose_in_systemd_boot(trees, stores, is_alone=grub is None)
    if grub:
        grub = attrs.evolve(grub, volume=_volume_with(grub.kernel, grub.volume, trees))
    if grub and systemd and not grub.starts_same(systemd):
        raise CannotTell(
            f"GRUB starts {grub.name}, and systemd-boot {systemd.name}; which loader the firmware starts is"
            " not read"
        )
    if not grub and systemd and stores and len(stores[0].entries) > 1:
        _check_order(trees, stores[0], systemd)
    return grub or systemd


def _volume_with(kernel: str, volume: Volume, trees: Sequence[tuple[Volume, TreeNode]]) -> Volume:
    """Return the volume with a kernel: that of GRUB's configuration, unless only another has it."""
    if volume.root is None or find_optional(volume.root, kernel):
        return volume
    return next((other for other, root in trees if find_optional(root, kernel)), volume)


def _read_store(volume: Volume, root: TreeNode, directory: str) -> _Store | None:
    path = f"{directory}{LOADER_ENTRIES}"
    node = find_optional(root, path)
    files = [name for name in node.entries() if name.endswith(ENTRY_SUFFIX)] if node else []
    if len(files) > _MAX_ENTRIES:
        raise CannotTell(f"/{path} has {len(files)} entries; {_MAX_ENTRIES} are read")
    entries = tuple(parse_loader_entry(file, read_text(root, f"{path}/{file}") or "") for file in files)
    return _Store(volume, entries) if entries else None


# GRUB


def _choose_in_grub(trees: Sequence[tuple[Volume, TreeNode]], stores: Sequence[_Store]) -> BootChoice | None:
    places = [(volume, root, path) for volume, root in trees for path in _grub_directories(root)]
    environment = _read_environment([(root, path) for _, root, path in places])
    for volume, root, path in places:
        text = read_text(root, f"{path}/grub.cfg")
        if text is not None:
            menu = GrubMenu(root, path, environment)
            menu.run(text)
            if menu.items:  # else it leads to the configuration on another volume
                return _choose(menu, menu.items, menu.get("default"), volume, stores)
    if not (stores and environment):
        return None
    menu = GrubMenu(trees[0][1], places[0][2], environment)
    menu.load_environment()
    default = menu.get("next_entry") or menu.get("saved_entry")
    return _choose(menu, [MenuItem(is_blscfg=True)], default, stores[0].volume, stores)


def _grub_directories(root: TreeNode) -> Iterator[str]:
    """Yield the directories of GRUB in a file system; those of vendors on the EFI system partition last."""
    for directory in _DIRECTORIES:
        for name in _GRUB_DIRECTORIES:
            if find_optional(root, f"{directory}{name}"):
                yield f"{directory}{name}"
    vendors = find_optional(root, "EFI")
    for name, read in vendors.entries().items() if vendors and stat.S_ISDIR(vendors.mode) else ():
        if stat.S_ISDIR(read().mode):
            yield f"EFI/{name}"


def _read_environment(places: Sequence[tuple[TreeNode, str]]) -> Mapping[str, str] | None:
    """Return the variables in the first grubenv; none if there is no such file; None: it cannot be read."""
    is_linked = False
    for root, path in places:
        text = read_text(root, f"{path}/grubenv")
        if text is not None:
            return parse_grub_environment(text)
        is_linked = is_linked or "grubenv" in find_node(root, path).entries()
    return None if is_linked else {}


def _choose(
    menu: GrubMenu, items: Sequence[MenuItem], default: str, volume: Volume, stores: Sequence[_Store]
) -> BootChoice:
    """Return the item that ``default`` names by number, id or title; the first if it names none."""
    store = next((each for each in stores if each.volume is volume), stores[0] if stores else None)
    listed = [each for item in items for each in _expand_item(item, store)]
    if not listed:
        raise CannotTell("GRUB's menu has no entry that can be read")
    wanted, _, inner = default.partition(_SEPARATOR)
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 4 else -1  # noqa: PLR2004 - more items than any
    names = [_names(each) for each in listed]
    found = next((index for index, each in enumerate(names) if index == number or wanted in each), 0)
    is_unknown = "$" in default or any(
        isinstance(each, MenuItem) and not each.is_certain for each in listed[: found + 1]
    )
    if is_unknown and len(listed) > 1:
        raise CannotTell("the default entry of GRUB's menu depends on facts that only a machine knows")
    item = listed[found]
    if isinstance(item, LoaderEntry):
        return _from_entry(menu, item, store)
    if item.is_submenu:
        return _choose(menu, menu.open_submenu(item), inner, volume, stores)
    started = menu.start(item)
    return BootChoice(
        volume,
        item.title,
        started.kernel,
        started.initrds,
        started.arguments,
        " ".join(started.arguments),
    )


def _expand_item(item: MenuItem, store: _Store | None) -> Sequence[MenuItem | LoaderEntry]:
    if not item.is_blscfg:
        return [item]
    entries = store.entries if store else ()
    kept = [each for each in entries if each.first("linux") and not each.file.startswith(".")]
    return sorted(kept, key=lambda each: grub_file_key(each.file), reverse=True)


def _names(item: MenuItem | LoaderEntry) -> set[str]:
    names = {item.stem, item.first("title")} if isinstance(item, LoaderEntry) else {item.id, item.title}
    return names - {""}


def _from_entry(menu: GrubMenu, entry: LoaderEntry, store: _Store | None) -> BootChoice:
    if store is None:
        raise CannotTell("GRUB's entries cannot be read")
    written = entry.first("options") or menu.get("default_kernelopts")
    initrds = " ".join(entry.values.get("initrd", ()))
    return BootChoice(
        store.volume,
        entry.file,
        menu.expand(entry.first("linux")),
        tuple(menu.expand(initrds).split()),
        tuple(menu.expand(written).split()),
        written,
    )


# systemd-boot


def _choose_in_systemd_boot(
    trees: Sequence[tuple[Volume, TreeNode]], stores: Sequence[_Store], *, is_alone: bool
) -> BootChoice | None:
    settings = _read_loader_config([root for _, root in trees])
    is_installed = settings is not None or any(find_optional(root, "EFI/systemd") for _, root in trees)
    if not is_installed and not is_alone:
        return None
    pattern = (settings or {}).get("default", "")
    if pattern.startswith("@"):
        raise CannotTell(f"loader.conf has default {pattern}: the firmware keeps the name of the entry")
    entries = sort_for_systemd(entry for store in stores for entry in store.entries)
    found = find_systemd_default(entries, pattern) if pattern else None
    if found is None and any(_has_unified_kernels(root) for _, root in trees):
        raise CannotTell("EFI/Linux has unified kernel images, whose sections are not read")
    found = found or next(iter(entries), None)
    if found is None:
        return None
    if not found.first("linux"):
        raise CannotTell(f"the entry {found.file} starts another program than a kernel of Linux")
    options = " ".join(found.values.get("options", ()))
    return BootChoice(
        next(store.volume for store in stores if found in store.entries),
        found.file,
        found.first("linux"),
        tuple(" ".join(found.values.get("initrd", ())).split()),
        tuple(options.split()),
        options,
    )


def _read_loader_config(roots: Sequence[TreeNode]) -> Mapping[str, str] | None:
    """Return the settings of the first loader.conf; None if there is none."""
    for root in roots:
        for directory in _DIRECTORIES:
            text = read_text(root, f"{directory}{LOADER_CONFIG}")
            if text is not None:
                lines = (line.split(None, 1) for line in text.splitlines() if not line.startswith("#"))
                return {words[0]: words[1].strip() for words in lines if len(words) > 1}
    return None


def _has_unified_kernels(root: TreeNode) -> bool:
    try:
        return any(name.lower().endswith(".efi") for name in find_node(root, "EFI/Linux").entries())
    except (FileNotInImage, FormatError):
        return False


def _check_order(trees: Sequence[tuple[Volume, TreeNode]], store: _Store, choice: BootChoice) -> None:
    """Raise CannotTell if no loader has left a sign, and GRUB would start another entry."""
    if _read_loader_config([root for _, root in trees]) is not None:
        return
    newest = max(store.entries, key=lambda each: grub_file_key(each.file))
    if newest.file != choice.name:
        raise CannotTell(
            f"the entries are ordered by GRUB from {newest.file} on, by systemd-boot from {choice.name} on;"
            " neither's configuration can be read"
        )
