"""Which operating systems are on a disk, as far as readable files tell.

RHCOS has its root on XFS, which is not read here: its boot partition identifies it. Signs of Windows are
its loaders on the EFI system partition, the boot code of NTFS, and the files of its registry.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.families.coreos.bls import ENTRIES, find_default_entry, read_entry
from image_service.core.families.coreos.ignition import CONFIG_FILE, FIRST_BOOT_FILE
from image_service.core.families.coreos.network_keyfiles import KEYFILE_DIRECTORY
from image_service.core.families.coreos.platforms import PLATFORM_ARGUMENT
from image_service.core.formats.boot_loader.loader_entry import grub_file_key
from image_service.core.formats.boot_loader.os_release import parse_os_release
from image_service.core.formats.filesystems.file_tree import find_optional
from image_service.core.formats.filesystems.ntfs import read_ntfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.families.coreos.bls import BlsEntry
    from image_service.core.formats.filesystems.file_tree import TreeNode
    from image_service.toolkit.inspection.content import DiskContent, Volume

_OS_RELEASE = ("etc/os-release", "usr/lib/os-release", "lib/os-release")
"""The last is that of a file system which is mounted on /usr."""
_DEPLOYMENTS = "ostree/deploy"
_PLATFORM, _OSTREE = f"{PLATFORM_ARGUMENT}=", "ostree="
_WINDOWS_LOADERS = ("EFI/Microsoft/Boot/bootmgfw.efi", "EFI/Microsoft/Boot/BCD")
_REGISTRY = "Windows/System32/config"
_HIVES = ("SAM", "SECURITY", "SOFTWARE", "SYSTEM", "DEFAULT")
_NTFS_BOOT_BYTES, _NTFS_LOADER = 8192, "BOOTMGR".encode("utf-16-le")
_MAX_FILE = 64 * 1024  # bytes; real files have some hundreds
_MAX_ENTRIES = 64


@attrs.frozen
class OsRelease:
    """An installed system.

    Args:
        partition: number; None: the whole disk.
        path: of its os-release file.
        values: of that file: ID, VERSION_ID, PRETTY_NAME, …
    """

    partition: int | None
    path: str
    values: dict[str, str]

    @property
    def name(self) -> str:
        """Return its name for people."""
        return self.values.get("PRETTY_NAME") or self.values.get("NAME") or self.values.get("ID", "")


@attrs.frozen
class DescribedEntry:
    """An entry of the boot loader; `damage`: why it cannot be read, None if it can."""

    file: str
    title: str
    version: str
    kernel_arguments: str
    damage: str | None = None


@attrs.frozen
class CoreosFacts:
    """The facts in the boot partition of a CoreOS.

    Args:
        partition: number; None: the whole disk.
        osname: of ostree: ``rhcos``, ``fedora-coreos``; None: the default entry names none.
        first_boot: the next boot is the first, which runs Ignition.
        ignition_config: a config is embedded; its content is secret and not described.
        network_keyfiles: keyfiles for the first boot are embedded.
        platform: ``ignition.platform.id`` of the default entry; None: it has none.
        entries: of the boot loader, in GRUB's order; the last boots by default.
        damage: why they cannot be listed; None: they can.
    """

    partition: int | None
    osname: str | None
    first_boot: bool
    ignition_config: bool
    network_keyfiles: bool
    platform: str | None
    entries: tuple[DescribedEntry, ...]
    damage: str | None


@attrs.frozen
class WindowsSigns:
    """The signs of a Windows.

    Args:
        ntfs: numbers of the partitions with NTFS whose boot code loads BOOTMGR.
        efi_files: of its loader, on the EFI system partition.
        registry_hives: names of the files in Windows/System32/config that are hives.
        damage: why an NTFS cannot be read; None: all can.
    """

    ntfs: tuple[int | None, ...]
    efi_files: tuple[str, ...]
    registry_hives: tuple[str, ...]
    damage: str | None


@attrs.frozen
class OperatingSystems:
    """All that were found; CoreOS and Windows are None if there is no sign of them."""

    releases: tuple[OsRelease, ...]
    coreos: CoreosFacts | None
    windows: WindowsSigns | None


def find_operating_systems(content: DiskContent) -> OperatingSystems:
    """Return the systems that files in readable file systems name; damaged files are skipped."""
    trees = [(volume, volume.root) for volume in content.volumes if volume.root]
    releases = tuple(release for volume, root in trees for release in _find_releases(volume, root))
    found = (_read_coreos(volume, root) for volume, root in trees)
    return OperatingSystems(releases, next(filter(None, found), None), _find_windows(content))


def _find_releases(volume: Volume, root: TreeNode) -> Iterator[OsRelease]:
    """Yield the systems in a file system: at its root, or in the deployments of ostree."""
    for directory in ("", *_find_deployments(root)):
        system = _find(root, directory)
        for path in _OS_RELEASE:
            data = _read_small(system, path) if system else None
            if data is not None:
                yield OsRelease(_number(volume), f"{directory}{path}", parse_os_release(data))
                break


def _find_deployments(root: TreeNode) -> Iterator[str]:
    for osname in _list_names(root, _DEPLOYMENTS):
        for name in _list_names(root, f"{_DEPLOYMENTS}/{osname}/deploy"):
            if not name.endswith(".origin"):
                yield f"{_DEPLOYMENTS}/{osname}/deploy/{name}/"


def _read_coreos(volume: Volume, root: TreeNode) -> CoreosFacts | None:
    """Return the facts in a boot partition of CoreOS; None if it is not one."""
    damage = None
    try:
        names = [name for name in _read_names(root, ENTRIES) if name.endswith(".conf")]
    except FormatError as error:
        names, damage = [], error.detail
    entries = [_read_boot_entry(root, name) for name in sorted(names, key=grub_file_key)]
    first_boot = _find(root, FIRST_BOOT_FILE) is not None
    if not first_boot and not any(_OSTREE in entry.kernel_arguments for entry in entries):
        return None
    words: list[str] = []
    if names:
        default = find_default_entry(names)
        words = next(entry.kernel_arguments.split() for entry in entries if entry.file == default)
    tree = _value(words, _OSTREE)  # /ostree/boot.1/OSNAME/CHECKSUM/0
    parts = tree.split("/") if tree else []
    return CoreosFacts(
        partition=_number(volume),
        osname=parts[3] if len(parts) > 3 else None,  # noqa: PLR2004 - the position of OSNAME
        first_boot=first_boot,
        ignition_config=_find(root, CONFIG_FILE) is not None,
        network_keyfiles=bool(_list_names(root, KEYFILE_DIRECTORY)),
        platform=_value(words, _PLATFORM),
        entries=tuple(entries),
        damage=damage,
    )


def _read_boot_entry(root: TreeNode, name: str) -> DescribedEntry:
    data = _read_small(root, f"{ENTRIES}/{name}")
    if data is None:
        return DescribedEntry(name, "", "", "", "the file cannot be read")
    try:
        entry: BlsEntry = read_entry(data)
    except FormatError as error:
        return DescribedEntry(name, "", "", "", error.detail)
    return DescribedEntry(name, entry.title, entry.version, entry.options)


def _find_windows(content: DiskContent) -> WindowsSigns | None:
    ntfs = [volume for volume in content.volumes if _kind(volume) == "ntfs"]
    bootable = tuple(_number(volume) for volume in ntfs if _loads_windows(volume))
    systems = [each.root for each in content.volumes if each.root and _kind(each) == "vfat"]
    files = tuple(path for root in systems for path in _WINDOWS_LOADERS if _find(root, path))
    hives, damage = list[str](), None
    for volume in ntfs:
        try:
            registry = find_optional(read_ntfs(volume.read_at, volume.size).root, _REGISTRY)
            hives += [name for name in _HIVES if registry and name in registry.entries()]
        except FormatError as error:
            damage = error.detail
    return WindowsSigns(bootable, files, tuple(hives), damage) if bootable or files or hives else None


def _loads_windows(volume: Volume) -> bool:
    """Return True for NTFS with the boot code of Windows; mkfs.ntfs writes another."""
    try:
        return _NTFS_LOADER in volume.read_at(0, min(_NTFS_BOOT_BYTES, volume.size))
    except FormatError:
        return False


def _kind(volume: Volume) -> str:
    return volume.file_system.kind if volume.file_system else ""


def _number(volume: Volume) -> int | None:
    return volume.partition.number if volume.partition else None


def _find(root: TreeNode, path: str) -> TreeNode | None:
    """Return a node; None if it is absent or damaged."""
    try:
        return find_optional(root, path)
    except FormatError:
        return None


def _read_small(root: TreeNode, path: str) -> bytes | None:
    """Return a small file's content; None if it is absent, large, damaged or no file."""
    node = _find(root, path)
    if node is None or not stat.S_ISREG(node.mode) or node.size > _MAX_FILE:
        return None
    try:
        return node.read()
    except FormatError:
        return None


def _list_names(root: TreeNode, path: str) -> list[str]:
    """Return the names in a directory, the last `_MAX_ENTRIES`; none if it is absent or damaged."""
    try:
        return _read_names(root, path)
    except FormatError:
        return []


def _read_names(root: TreeNode, path: str) -> list[str]:
    """Return the same; FormatError if the directory is damaged."""
    node = find_optional(root, path)
    return sorted(node.entries())[-_MAX_ENTRIES:] if node and stat.S_ISDIR(node.mode) else []


def _value(words: list[str], prefix: str) -> str | None:
    """Return the value of the last argument of a name."""
    return next((word.removeprefix(prefix) for word in reversed(words) if word.startswith(prefix)), None)
