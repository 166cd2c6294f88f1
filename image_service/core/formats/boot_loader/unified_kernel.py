"""Unified kernel images: programs for UEFI whose sections are a kernel and what it needs to start.

    .linux     the kernel
    .initrd    its initrd; .ucode: microcode, which the kernel gets before it
    .cmdline   its arguments
    .osrel     the os-release file, from which systemd-boot takes the title and the order
    .profile   begins the sections of a further entry, which is not read here

A file ``EFI/Linux/NAME.efi`` is an entry of the Boot Loader Specification, type 2. ``NAME.efi.extra.d`` and
``loader/addons`` may have programs ``*.addon.efi`` that add arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import FormatError, FormatUnread
from image_service.core.formats.boot_loader.loader_entry import LoaderEntry
from image_service.core.formats.boot_loader.os_release import parse_os_release
from image_service.core.formats.efi_program import read_efi_sections
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.reading import ReadAt, Span

UNIFIED_KERNELS = "EFI/Linux"
KERNEL_SECTION = ".linux"

_MICROCODE, _INITRD = ".ucode", ".initrd"
_ARGUMENTS, _OS_RELEASE, _PROFILE = ".cmdline", ".osrel", ".profile"
_MAX_TEXT = 64 * 1024
_TITLE = ("PRETTY_NAME", "IMAGE_ID", "NAME", "ID")
_VERSION = ("IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID")
_SORT_KEY = ("IMAGE_ID", "ID")


def is_unified_kernel_name(file: str) -> bool:
    """Return True if systemd-boot reads a file of this name in `UNIFIED_KERNELS`."""
    return file.lower().endswith(".efi") and not file.lower().startswith("auto-")


def read_unified_kernel(file: str, read_at: ReadAt, size: int) -> LoaderEntry:
    """Return the entry of a unified kernel image; ``linux`` and ``initrd`` are names of its sections.

    Args:
        file: its name in the directory.
        size: of the file, in bytes.

    Raises:
        FormatUnread: it has several entries.
        FormatError: it is not such an image, or damaged.
    """
    sections = read_efi_sections(read_at, size)
    if _PROFILE in sections:
        raise FormatUnread(f"{file} has several profiles, which are not read")
    for name in (KERNEL_SECTION, _OS_RELEASE):
        if name not in sections:
            raise FormatError(f"{file} is not a unified kernel image: it has no section {name}")
    release = parse_os_release(_read_section(read_at, sections[_OS_RELEASE]))
    arguments = _read_section(read_at, sections[_ARGUMENTS]) if _ARGUMENTS in sections else b""
    values = {
        "title": _first(release, _TITLE),
        "version": _first(release, _VERSION),
        "sort-key": _first(release, _SORT_KEY),
        "linux": KERNEL_SECTION,
        "options": " ".join(arguments.decode(errors="replace").split()),
        "initrd": " ".join(name for name in (_MICROCODE, _INITRD) if name in sections),
    }
    return LoaderEntry(file, {key: (value,) for key, value in values.items() if value})


def _read_section(read_at: ReadAt, section: Span) -> bytes:
    if section.length > _MAX_TEXT:
        raise FormatUnread(f"the section {section.path} has {section.length} bytes, more than {_MAX_TEXT}")
    return read_exactly(read_at, section.offset, section.length).rstrip(b"\0")


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((values[name] for name in names if values.get(name)), "")
