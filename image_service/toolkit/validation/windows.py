"""The facts of a disk with Windows, read by the programs of ntfs-3g and hivex.

Each NTFS volume is copied by the disk's data extents into a sparse private file, because the programs read
files, and no container of disk images; only one copy exists at a time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ConversionFailed
from image_service.toolkit.validation.verdicts import CannotTell
from image_service.toolkit.workspace.dependencies import HIVEXSH, NTFSCAT, NTFSINFO, NTFSLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from image_service.core.formats.disk.model import VirtualDisk
    from image_service.toolkit.inspection.content import Volume
    from image_service.toolkit.workspace.workspace import Workspace

SYSTEM_HIVE = "Windows/System32/config/SYSTEM"
BOOT_STORE = "Boot/BCD"

_PROGRAMS = (NTFSCAT, NTFSINFO, NTFSLS, HIVEXSH)
_HIBERNATION_FILE = "hiberfil.sys"
_HIBERNATED = (b"hibr", b"HIBR")
_FLAGS = re.compile("Volume Flags: 0x([0-9a-fA-F]+)")
_DIRTY = 1
_PIECE = 1024 * 1024
_MAX_HIVE = 512 * 1024 * 1024
_SERVICE = re.compile("[A-Za-z0-9_-]{1,64}")
_SERVICES = r"\ControlSet{number:03}\Services"


@attrs.frozen
class WindowsFacts:
    """The facts in the NTFS volumes of a disk.

    Args:
        volumes: names of the NTFS volumes.
        damaged: reasons by volume why it cannot be read.
        dirty: volumes that Windows has not unmounted.
        hibernated: volumes with a saved session.
        boot_stores: volumes with ``Boot/BCD``.
        system: the volume with the SYSTEM hive; None: there is none.
        start_types: of the wanted services by name in lower case: 0 at boot, 1 and 2 automatic, 3 on demand,
            4 disabled; None: the hive has no start type.
        hive_damage: why the SYSTEM hive cannot be read.
    """

    volumes: tuple[str, ...]
    damaged: Mapping[str, str]
    dirty: tuple[str, ...]
    hibernated: tuple[str, ...]
    boot_stores: tuple[str, ...]
    system: str | None
    start_types: Mapping[str, int | None]
    hive_damage: str | None


def read_windows(
    disk: VirtualDisk, volumes: Iterable[Volume], services: frozenset[str], workspace: Workspace
) -> WindowsFacts:
    """Return the facts in the NTFS volumes of a disk.

    Args:
        services: names in lower case, of which the start types are looked up.

    Raises:
        CannotTell: no volume is NTFS, or programs are missing; names their packages.
    """
    ntfs = [volume for volume in volumes if volume.file_system and volume.file_system.kind == "ntfs"]
    if not ntfs:
        raise CannotTell("the disk has no NTFS volume, so no Windows")
    if missing := [program for program in _PROGRAMS if not program.find()]:
        packages = sorted({f"Debian {program.debian}, Fedora {program.fedora}" for program in missing})
        raise CannotTell(
            f"not installed: {', '.join(program.name for program in missing)} ({'; '.join(packages)})"
        )
    damaged: dict[str, str] = {}
    found: list[_VolumeFacts] = []
    for volume in ntfs:
        name = f"partition {volume.partition.number}" if volume.partition else "the disk"
        try:
            found.append(_read_volume(name, disk, volume, services, workspace))
        except ConversionFailed as error:
            damaged[name] = error.detail
    system = next((each for each in found if each.has_hive), None)
    return WindowsFacts(
        volumes=(*(each.name for each in found), *damaged),
        damaged=damaged,
        dirty=tuple(each.name for each in found if each.is_dirty),
        hibernated=tuple(each.name for each in found if each.is_hibernated),
        boot_stores=tuple(each.name for each in found if each.has_boot_store),
        system=system.name if system else None,
        start_types=system.start_types if system else {},
        hive_damage=system.hive_damage if system else None,
    )


@attrs.frozen
class _VolumeFacts:
    """The facts in one NTFS volume; names as in `WindowsFacts`."""

    name: str
    is_dirty: bool
    is_hibernated: bool
    has_boot_store: bool
    has_hive: bool
    start_types: Mapping[str, int | None]
    hive_damage: str | None


def _read_volume(
    name: str, disk: VirtualDisk, volume: Volume, services: frozenset[str], workspace: Workspace
) -> _VolumeFacts:
    copy = workspace.directory / "ntfs"
    try:
        _copy(disk, volume, copy, workspace)
        flags = _FLAGS.search(workspace.run([NTFSINFO.name, "-fm", copy]).decode(errors="replace"))
        hive_path = _find(copy, SYSTEM_HIVE, workspace)
        start_types: Mapping[str, int | None] = {}
        hive_damage = None
        if hive_path:
            try:
                start_types = _read_start_types(copy, hive_path, services, workspace)
            except ConversionFailed as error:
                hive_damage = error.detail
        return _VolumeFacts(
            name=name,
            is_dirty=flags is not None and bool(int(flags[1], 16) & _DIRTY),
            is_hibernated=_is_hibernated(copy, workspace),
            has_boot_store=_find(copy, BOOT_STORE, workspace) is not None,
            has_hive=hive_path is not None,
            start_types=start_types,
            hive_damage=hive_damage,
        )
    finally:
        copy.unlink(missing_ok=True)


def _copy(disk: VirtualDisk, volume: Volume, copy: Path, workspace: Workspace) -> None:
    """Copy the volume's data extents into a sparse file."""
    pieces = list(_data_of(disk, volume))
    workspace.reserve(sum(length for _, length in pieces), "the copy of an NTFS volume")
    workspace.progress.start("ntfs", sum(length for _, length in pieces))
    with copy.open("wb") as file:
        file.truncate(volume.size)
        done = 0
        for start, length in pieces:
            file.seek(start)
            for at in range(start, start + length, _PIECE):
                piece = volume.read_at(at, min(_PIECE, start + length - at))
                workspace.pace(len(piece))
                file.write(piece)
                done += len(piece)
                workspace.progress.set(done)
    workspace.progress.finish()


def _data_of(disk: VirtualDisk, volume: Volume) -> Iterator[tuple[int, int]]:
    """Yield (offset in the volume, length) of the disk's data extents in the volume."""
    first = volume.partition.offset if volume.partition else 0
    for offset, length in disk.data_extents():
        start, end = max(offset, first), min(offset + length, first + volume.size)
        if start < end:
            yield start - first, end - start


def _find(copy: Path, path: str, workspace: Workspace) -> str | None:
    """Return a path as the volume spells it, because Windows ignores case and the programs do not."""
    found = ""
    for name in path.split("/"):
        listing = workspace.run([NTFSLS.name, "-f", "-p", found or "/", copy]).decode(errors="replace")
        spelled = next((each for each in listing.splitlines() if each.lower() == name.lower()), None)
        if spelled is None:
            return None
        found += f"/{spelled}"
    return found


def _is_hibernated(copy: Path, workspace: Workspace) -> bool:
    path = _find(copy, _HIBERNATION_FILE, workspace)
    return path is not None and _read_head(copy, path, len(_HIBERNATED[0]), workspace) in _HIBERNATED


class _EnoughError(Exception):
    """The first bytes of a file are read; ends the program that prints it."""


def _read_head(copy: Path, path: str, length: int, workspace: Workspace) -> bytes:
    head = bytearray()

    def collect(data: bytes) -> None:
        head.extend(data)
        if len(head) >= length:
            raise _EnoughError

    with suppress(_EnoughError):
        workspace.run([NTFSCAT.name, "-f", copy, path], on_output=collect)
    return bytes(head[:length])


def _read_start_types(
    copy: Path, hive_path: str, services: frozenset[str], workspace: Workspace
) -> dict[str, int | None]:
    """Return the start types of services in the SYSTEM hive, of the control set that Windows starts."""
    hive = workspace.directory / "SYSTEM"
    try:
        with hive.open("wb") as file:

            def write(data: bytes) -> None:
                workspace.pace(len(data))
                if file.tell() > _MAX_HIVE:
                    raise ConversionFailed(f"the SYSTEM hive has more than {_MAX_HIVE} bytes")
                file.write(data)

            workspace.run([NTFSCAT.name, "-f", copy, hive_path], on_output=write)
        number = _number(_hivexsh(hive, [r"cd \Select", "lsval Current"], workspace)) or 1
        directory = _SERVICES.format(number=number)
        listed = _hivexsh(hive, [f"cd {directory}", "ls"], workspace).splitlines()
        known = {
            name.lower(): name for name in listed if name.lower() in services and _SERVICE.fullmatch(name)
        }
        return {
            lower: _read_start_type(hive, rf"{directory}\{name}", workspace)
            for lower, name in sorted(known.items())
        }
    finally:
        hive.unlink(missing_ok=True)


def _read_start_type(hive: Path, key: str, workspace: Workspace) -> int | None:
    try:
        return _number(_hivexsh(hive, [f"cd {key}", "lsval Start"], workspace))
    except ConversionFailed:  # it has no such value
        return None


def _hivexsh(hive: Path, commands: list[str], workspace: Workspace) -> str:
    script = "\n".join([*commands, ""]).encode()
    return workspace.run([HIVEXSH.name, hive], stdin=script).decode(errors="replace")


def _number(text: str) -> int | None:
    return int(text, 0) if re.fullmatch(r"\s*(0x[0-9a-fA-F]+|[0-9]{1,10})\s*", text) else None
