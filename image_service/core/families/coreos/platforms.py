"""Platforms: the kernel argument that names one, and the consoles that an image has for each.

``coreos/platforms.json`` in the boot partition has, by platform, the commands of GRUB and the kernel
arguments that set its consoles. An image is made for one platform, mostly ``metal``; another one's consoles
replace those of ``metal``. A platform that the file does not have gets none. GRUB's commands stand between
two marks, in a file of their own or in grub.cfg.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.families.coreos.json_file import read_json_object
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.formats.reading import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

METAL = "metal"
"""The platform of the images that coreos-installer writes."""

PLATFORMS_FILE = "coreos/platforms.json"
PLATFORM_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

PLATFORM_ARGUMENT = "ignition.platform.id"
_MAX_LINES = 64

CONSOLE_FILES = ("grub2/console.cfg", "grub2/grub.cfg")
"""Where the marks are in the boot partition: in the first that exists."""

_SETTINGS = re.compile(
    rb"(\n# CONSOLE-SETTINGS-START\n)(?:[^\n]*\n)*(# CONSOLE-SETTINGS-END\n)"
)  # as in coreos-installer


@attrs.frozen
class PlatformConsoles:
    """The consoles of a platform: kernel arguments, and commands of GRUB."""

    kernel_arguments: tuple[str, ...] = ()
    grub_commands: tuple[str, ...] = ()


def read_platforms(content: bytes) -> Mapping[str, PlatformConsoles]:
    """Return the consoles by platform; FormatError if the file is damaged."""
    table = read_json_object(
        lambda offset, length: content[offset : offset + length], Span(PLATFORMS_FILE, 0, len(content))
    )
    return {
        name: PlatformConsoles(
            tuple(consoles.texts("kernel_arguments", _MAX_LINES)),
            tuple(consoles.texts("grub_commands", _MAX_LINES)),
        )
        for name, consoles in table.members()
    }


def is_named(options: str, platform: str) -> bool:
    """Return True if the kernel arguments name this platform already."""
    return f"{PLATFORM_ARGUMENT}={platform}" in options.split()


def set_platform(options: str, platform: str, before: PlatformConsoles, after: PlatformConsoles) -> str:
    """Return kernel arguments that name another platform than `METAL`, with its consoles.

    Args:
        options: kernel arguments that name `METAL`; others are a FormatError.
        before: the consoles of `METAL`.
        after: those of the platform.
    """
    if not is_named(options, METAL):
        raise FormatError(f"the kernel arguments of the image do not contain {PLATFORM_ARGUMENT}={METAL}")
    rename = KernelArgument(Operation.REPLACE, f"{PLATFORM_ARGUMENT}={METAL}={platform}")
    consoles = [
        *(KernelArgument(Operation.DELETE, argument) for argument in before.kernel_arguments),
        *(KernelArgument(Operation.APPEND, argument) for argument in after.kernel_arguments),
    ]
    return edit_arguments(edit_arguments(options, [rename]), consoles)


def replace_console_commands(config: bytes, commands: Sequence[str]) -> bytes:
    """Return GRUB's configuration with other commands for the consoles; FormatError without the marks."""
    match = _SETTINGS.search(config)
    if not match:
        raise FormatError("GRUB's configuration has no marks of console settings (CONSOLE-SETTINGS-START)")
    lines = "".join(f"{command}\n" for command in commands).encode()
    return config[: match.end(1)] + lines + config[match.start(2) :]
