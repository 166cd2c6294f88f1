"""Boot configurations, edited by their dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.boot_configuration import esxi, grub, syslinux, systemd_boot
from image_service.core.formats.boot_configuration.boot_edit import BootEdit, ConfigFile, Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EDITORS: Mapping[Dialect, Callable[[bytes, BootEdit, str], bytes]] = {
    Dialect.GRUB: grub.edit,
    Dialect.SYSLINUX: syslinux.edit,
    Dialect.SYSTEMD_BOOT: systemd_boot.edit,
    Dialect.ESXI: esxi.edit,
}


def edit_config(config: ConfigFile, edit: BootEdit) -> ConfigFile:
    """Return an edited configuration; an equal one if the edit changes nothing in it.

    Raises:
        KernelArgumentInvalid: its loader would not pass an argument as it is.
        KernelArgumentsTooLarge: the kernel would not take all arguments.
    """
    content = _EDITORS[config.dialect](config.content, edit, config.path)
    return attrs.evolve(config, content=content)
