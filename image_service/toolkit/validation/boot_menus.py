"""The entry that a disk's boot loader starts by default: GRUB's or systemd-boot's.

Which of the two the firmware starts is not read. Where both have a menu they must agree. A unified kernel
image may be the loader itself (EFI/BOOT/BOOTX64.EFI), and firmware or GRUB may start those in EFI/Linux.
"""

from __future__ import annotations

import stat
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, UnreadScript
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
from image_service.core.formats.boot_loader.unified_kernel import (
    KERNEL_SECTION,
    UNIFIED_KERNELS,
    is_unified_kernel_name,
    read_unified_kernel,
)
from image_service.core.formats.efi_program import read_efi_sections
from image_service.core.formats.filesystems.file_tree import find_node, find_optional
from image_service.toolkit.validation.root_files import read_parts, read_text
from image_service.toolkit.validation.verdicts import CannotTell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.toolkit.inspection.content import Volume

_DIRECTORIES = ("", "boot/")
_GRUB_DIRECTORIES = ("grub2", "grub")
_REMOVABLE = "EFI/BOOT"
_REMOVABLE_LOADERS = ("BOOTX64.EFI", "BOOTAA64.EFI")
_ADDONS, _ADDON_SUFFIX = "loader/addons", ".addon.efi"
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
        image: path of the unified kernel image of which kernel and initrds are sections; "": they are files.
    """

    volume: Volume
    name: str
    kernel: str
    initrds: tuple[str, ...]
    arguments: tuple[str, ...]
    written: str
    image: str = ""

    def starts_same(self, other: BootChoice) -> bool:
        """Return True if both start the same kernel in the same way."""
        return self.volume is other.volume and (self.image, self.kernel, self.initrds, self.arguments) == (
            other.image,
            other.kernel,
            other.initrds,
            other.arguments,
        )


@attrs.frozen(eq=False)
class _Store:
    """A directory with entries of the Boot Loader Specification.

    Args:
        unified: the directory of unified kernel images; "": the entries are of type 1.
    """

    volume: Volume
    entries: tuple[LoaderEntry, ...]
    unified: str = ""

    def choose(self, entry: LoaderEntry) -> BootChoice:
        """Return the choice of an entry, as systemd-boot and firmware start it."""
        if not entry.first("linux"):
            raise CannotTell(f"the entry {entry.file} starts another program than a kernel of Linux")
        options = " ".join(entry.values.get("options", ()))
        return BootChoice(
            self.volume,
            entry.file,
            entry.first("linux"),
            tuple(" ".join(entry.values.get("initrd", ())).split()),
            tuple(options.split()),
            options,
            self.unified and f"{self.unified}/{entry.file}",
        )


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
    unified = [store for volume, root in trees if (store := _read_unified_kernels(volume, root))]
    try:
        grub = _choose_in_grub(trees, stores)
    except UnreadScript as reason:
        raise CannotTell(reason.detail) from None
    if grub:
        grub = attrs.evolve(grub, volume=_volume_with(grub.kernel, grub.volume, trees))
    choices = {
        _REMOVABLE: _choose_removable(trees),
        "GRUB": grub,
        "systemd-boot": _choose_in_systemd_boot(trees, stores, unified, is_alone=grub is None),
    }
    chosen = [(loader, choice) for loader, choice in choices.items() if choice]
    for (one, first), (other, second) in pairwise(chosen):
        if not first.starts_same(second):
            raise CannotTell(
                f"{one} starts {first.name}, and {other} {second.name}; which loader the firmware starts is"
                " not read"
            )
    if not chosen:
        return None
    choice = chosen[0][1]
    if grub and unified and len(chosen) == 1:
        raise CannotTell(
            f"GRUB starts {grub.name}, and {UNIFIED_KERNELS} has unified kernel images; which the firmware"
            " starts is not read"
        )
    if not grub and stores and len(stores[0].entries) > 1:
        _check_order(trees, stores[0], choice)
    return choice


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


# Unified kernel images


def _read_unified_kernels(volume: Volume, root: TreeNode) -> _Store | None:
    node = find_optional(root, UNIFIED_KERNELS)
    files = [name for name in node.entries() if is_unified_kernel_name(name)] if node else []
    if len(files) > _MAX_ENTRIES:
        raise CannotTell(f"/{UNIFIED_KERNELS} has {len(files)} entries; {_MAX_ENTRIES} are read")
    entries = tuple(_read_unified_kernel(root, UNIFIED_KERNELS, file) for file in files)
    return _Store(volume, entries, UNIFIED_KERNELS) if entries else None


def _read_unified_kernel(root: TreeNode, directory: str, file: str) -> LoaderEntry:
    path = f"{directory}/{file}"
    for place in (f"{path}.extra.d", _ADDONS):
        addons = find_optional(root, place)
        if addons and any(name.lower().endswith(_ADDON_SUFFIX) for name in addons.entries()):
            raise CannotTell(f"/{place} has programs that may add kernel arguments, and are not read")
    node = find_node(root, path)
    try:
        return read_unified_kernel(file, read_parts(node, path), node.size)
    except FormatError as error:
        raise CannotTell(f"/{path} cannot be read: {error.detail}") from None


def _choose_removable(trees: Sequence[tuple[Volume, TreeNode]]) -> BootChoice | None:
    """Return the unified kernel image in the place of the loader for removable media; None: it is another."""
    for volume, root in trees:
        for file in _REMOVABLE_LOADERS:
            node = find_optional(root, f"{_REMOVABLE}/{file}")
            if node is None:
                continue
            try:
                sections = read_efi_sections(read_parts(node, file), node.size)
            except (FormatError, CannotTell):
                continue
            if KERNEL_SECTION in sections:
                entry = _read_unified_kernel(root, _REMOVABLE, file)
                return _Store(volume, (entry,), _REMOVABLE).choose(entry)
    return None


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
    trees: Sequence[tuple[Volume, TreeNode]],
    stores: Sequence[_Store],
    unified: Sequence[_Store],
    *,
    is_alone: bool,
) -> BootChoice | None:
    settings = _read_loader_config([root for _, root in trees])
    is_installed = settings is not None or any(find_optional(root, "EFI/systemd") for _, root in trees)
    if not is_installed and not is_alone:
        return None
    pattern = (settings or {}).get("default", "")
    if pattern.startswith("@"):
        raise CannotTell(f"loader.conf has default {pattern}: the firmware keeps the name of the entry")
    all_stores = (*stores, *unified)
    entries = sort_for_systemd(entry for store in all_stores for entry in store.entries)
    if unified and not is_installed and len(entries) > 1:
        raise CannotTell(
            f"{UNIFIED_KERNELS} has unified kernel images; which the firmware starts is not read"
        )
    found = (find_systemd_default(entries, pattern) if pattern else None) or next(iter(entries), None)
    if found is None:
        return None
    return next(store for store in all_stores if found in store.entries).choose(found)


def _read_loader_config(roots: Sequence[TreeNode]) -> Mapping[str, str] | None:
    """Return the settings of the first loader.conf; None if there is none."""
    for root in roots:
        for directory in _DIRECTORIES:
            text = read_text(root, f"{directory}{LOADER_CONFIG}")
            if text is not None:
                lines = (line.split(None, 1) for line in text.splitlines() if not line.startswith("#"))
                return {words[0]: words[1].strip() for words in lines if len(words) > 1}
    return None


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
