"""The consoles in GRUB's configuration: commands between two marks, in a file of their own or in grub.cfg."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSOLE_FILES = ("grub2/console.cfg", "grub2/grub.cfg")
"""Where the marks are in the boot partition: in the first that exists."""

_SETTINGS = re.compile(
    rb"(\n# CONSOLE-SETTINGS-START\n)(?:[^\n]*\n)*(# CONSOLE-SETTINGS-END\n)"
)  # as in coreos-installer


def replace_console_commands(config: bytes, commands: Sequence[str]) -> bytes:
    """Return GRUB's configuration with other commands for the consoles; FormatError without the marks."""
    match = _SETTINGS.search(config)
    if not match:
        raise FormatError("GRUB's configuration has no marks of console settings (CONSOLE-SETTINGS-START)")
    lines = "".join(f"{command}\n" for command in commands).encode()
    return config[: match.end(1)] + lines + config[match.start(2) :]
