"""Derives a minimal ISO from a full one, if it cannot be spliced from that.

It lacks the rootfs. It has a file of zeros over which a ramdisk is laid, the archive with nmstatectl if that
is needed, and boot configurations that load both; the rest, down to the partition tables, is that of the full
ISO. Runs in a thread, and needs disk space for the minimal ISO and some MiB of scratch files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.atomic import atomic_target, scratch_directory
from image_service.common.files.private_files import open_no_follow
from image_service.core.errors import BaseImageError, FileNotInImage
from image_service.core.families.coreos.boot_config import (
    BootConfig,
    BootConfigs,
    add_kargs_areas,
    derive_minimal_configs,
    render_kargs_json,
)
from image_service.core.families.coreos.family import (
    BOOT_CONFIG_FILES,
    KARGS_JSON,
    MINISO_FILE,
    NMSTATE_FILE,
    RAMDISK_FILE,
    ROOTFS_FILE,
    WITHOUT_MINIMAL_ISO,
)
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import read_exactly
from image_service.server.catalog.derived.xorriso import Remastering, remaster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.formats.iso9660.volume import Iso9660
    from image_service.core.formats.reading import Span
    from image_service.core.images.base_image import BaseImage

DERIVATION_VERSION = 1
"""Incremented by every change that makes other bytes from the same base image."""

RAMDISK_BYTES = 1024 * 1024
_SLACK_BYTES = 4 * 1024 * 1024  # directories, boot records, and the end of a hybrid image's last MiB
_MAX_BOOT_CONFIG = 64 * 1024  # bytes; real ones have some thousand
# xorriso takes the start of 1970 for no date, and uses the clock
_FIRST_DATE = datetime(1980, 1, 1, tzinfo=UTC)
# In images older than 2022: offsets of areas in the full ISO, which are wrong in the minimal one.
_LEGACY_HEADERS = ((b"coreKarg", 32672, 72), (b"coreiso+", 32744, 24))


def derive_minimal_iso(
    base: BaseImage, nmstate: Path | None, target: Path, scratch: Path, interruption: Interruption
) -> None:
    """Make a minimal ISO, reproducibly: the same base image and archive make the same bytes.

    Args:
        base: the full ISO.
        nmstate: the archive with nmstatectl; None: not needed.
        target: written atomically; its name starts with ``rhcos-``.
        interruption: stops this from another thread.

    Raises:
        BaseImageError: no minimal ISO can be made from this base; says why.
        Unavailable: not now; says why.
        OSError: a file cannot be read or written.
        Interrupted: the service stops.
    """
    if base.architecture in WITHOUT_MINIMAL_ISO:
        raise BaseImageError(f"{base.architecture} boots with one initrd only, so none can be added")
    iso = read_iso9660(base.file.read_at, base.file.size)
    boot = _derive_boot_configs(base, iso, [RAMDISK_FILE, *([NMSTATE_FILE] if nmstate else [])])
    with atomic_target(target) as temporary, scratch_directory(scratch) as directory:
        changes = _write_changes(base, iso, boot, nmstate, directory)
        remaster(base.file, temporary, changes, interruption)
        _clear_legacy_headers(temporary)


def _derive_boot_configs(base: BaseImage, iso: Iso9660, initrds: list[str]) -> BootConfigs:
    """Change the boot configurations that boot something, with the areas that lie inside each."""
    kargs = base.coreos.kernel_arguments
    areas, size = (kargs.areas, kargs.size) if kargs else ((), 0)
    named = [area.name for area in areas]  # paths, except in legacy headers
    files = _find_files(iso, [*named, *BOOT_CONFIG_FILES])
    found = []
    for file in {(file.offset, file.length): file for file in files}.values():  # one spelling of each path
        if file.length > _MAX_BOOT_CONFIG:
            raise BaseImageError(f"{file.path} has {file.length} bytes, more than {_MAX_BOOT_CONFIG}")
        content = read_exactly(base.file.read_at, file.offset, file.length)
        moved = [attrs.evolve(area, offset=area.offset - file.offset) for area in areas]
        inside = tuple(area for area in moved if 0 <= area.offset <= file.length - size)
        config = BootConfig(file.path, content, inside)
        if config.areas or config.names_initrds:
            found.append(config)
    held = sum(len(config.areas) for config in found)
    if held != len(areas):
        raise BaseImageError(
            f"known boot configurations contain only {held} of the {len(areas)} kernel argument areas"
        )
    configs = tuple(found)
    boot = BootConfigs(kargs.default, kargs.size, configs) if kargs else add_kargs_areas(configs)
    return derive_minimal_configs(boot, [f"/{initrd}" for initrd in initrds])


def _find_files(iso: Iso9660, paths: Iterable[str]) -> Iterator[Span]:
    """Yield those that the ISO has."""
    for path in paths:
        with suppress(FileNotInImage):
            yield iso.find_file(path)


def _write_changes(
    base: BaseImage, iso: Iso9660, boot: BootConfigs, nmstate: Path | None, directory: Path
) -> Remastering:
    """Write the files to be added into a directory; return all changes."""
    if base.iso.files.rootfs is None:
        raise BaseImageError(f"there is no {ROOTFS_FILE} that a minimal ISO could omit")
    contents = {
        RAMDISK_FILE: bytes(RAMDISK_BYTES),
        KARGS_JSON: render_kargs_json(boot),
        **{config.path: config.content for config in boot.configs},
    }
    added = {}
    for number, (path, content) in enumerate(contents.items()):
        added[path] = directory / str(number)
        added[path].write_bytes(content)
    if nmstate:
        added[NMSTATE_FILE] = nmstate
    replaced = _find_files(iso, [ROOTFS_FILE, MINISO_FILE, *added])
    return Remastering(
        removed=tuple(f"/{file.path}" for file in replaced),
        added={f"/{path}": file for path, file in added.items()},
        date=max(base.iso.created or _FIRST_DATE, _FIRST_DATE),
        guid=base.sha256[:32],
        max_bytes=base.file.size + sum(file.stat().st_size for file in added.values()) + _SLACK_BYTES,
    )


def _clear_legacy_headers(path: Path) -> None:
    with os.fdopen(open_no_follow(path, os.O_RDWR), "r+b") as file:
        for magic, offset, length in _LEGACY_HEADERS:
            file.seek(offset)
            if file.read(len(magic)) == magic:
                file.seek(offset)
                file.write(bytes(length))
