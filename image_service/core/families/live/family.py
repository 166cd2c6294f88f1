"""What a family of live ISOs is: how one is recognized, and where its config goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping  # noqa: TC003 - attrs resolves annotations at run time
from typing import NoReturn

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.families.iso_layout import BootPart
from image_service.core.families.live.medium import LiveMedium  # noqa: TC001 - same
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.reading import Span  # noqa: TC001 - same


@attrs.frozen
class MediumEdit:
    """Files, arguments and initrds that are laid over an ISO.

    Args:
        files: their content by path.
        initrd: files of one more initrd, by path in it.
        efi_files: files in each FAT file system that UEFI boots from, whose size does not change.
        boot: of every boot entry.
    """

    files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    initrd: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    efi_files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    boot: BootEdit = attrs.field(factory=BootEdit)


@attrs.frozen
class Netboot:
    """How a family boots without a medium: a kernel, and an initrd behind which its config lies.

    Args:
        files: pairs of kernel and initrd on the ISO, as patterns; the first pair that is there counts.
        arguments: of the kernel. ``{iso}`` is the URL of the ISO with the config, ``{rootfs}`` that of the
            root file system on it, which the initrd fetches; ``{name}`` is the name of its file.
        config: where the initrd has the config; None: nowhere, for it is on the ISO, or on a second medium.
        config_arguments: returns more arguments for a config; they begin with a blank.
        iso: where the initrd has the ISO with the config; None: nowhere.
    """

    files: tuple[tuple[str, str], ...]
    arguments: str
    config: str | None = None
    config_arguments: Callable[[bytes], str] | None = None
    iso: str | None = None

    @property
    def fetches_iso(self) -> bool:
        """True if a machine fetches the whole ISO as well, by its own URL."""
        return "{iso}" in self.arguments

    @property
    def fetches_rootfs(self) -> bool:
        """True if a machine fetches the root file system as well."""
        return "{rootfs}" in self.arguments


@attrs.frozen
class LiveFiles:
    """What a machine reads of an ISO to boot it: patterns of the paths, in any case."""

    kernels: tuple[str, ...] = ()
    initrds: tuple[str, ...] = ()
    rootfs: tuple[str, ...] = ()

    def find(self, medium: LiveMedium) -> Iterator[tuple[BootPart, Span]]:
        """Yield those that an ISO has."""
        for part, patterns in (
            (BootPart.KERNEL, self.kernels),
            (BootPart.INITRD, self.initrds),
            (BootPart.ROOTFS, self.rootfs),
        ):
            for pattern in patterns:
                yield from ((part, file) for file in medium.find_all(pattern))


@attrs.frozen
class ConfigValidator:
    """A family's own program that checks a config.

    Args:
        command: its name, and its arguments before the path.
        fault: pattern of what it prints about a config that it does not accept; groups say where and what.
    """

    command: tuple[str, ...]
    fault: str

    @property
    def name(self) -> str:
        """The program's name."""
        return self.command[0]


@attrs.frozen
class LiveFamily:
    """A family.

    Args:
        name: as in ``OS_IMAGES``.
        config: what its config is called.
        recognizes: returns True for an ISO of the family.
        files: that are read while it boots.
        check: raises ConfigInvalid for a config that the family would not read.
        place: returns the edit that makes the installer or the live system use a config.
        medium: label and path by which it finds a config on a second medium; a function returns the path
            where that depends on the config; None: it looks for none.
        netboot: how it boots without a medium, or why it does not, after "which".
        validator: the family's own program that checks a config, where it is installed.
    """

    name: str
    config: str
    recognizes: Callable[[LiveMedium], bool]
    files: LiveFiles
    check: Callable[[bytes], None]
    place: Callable[[LiveMedium, bytes], MediumEdit]
    medium: tuple[str, str | Callable[[bytes], str]] | None = None
    netboot: Netboot | str = "needs its ISO to boot"
    validator: ConfigValidator | None = None


CLOUD_INIT = ("cidata", "user-data")
"""The medium that cloud-init reads by itself."""


def refuse(why: str) -> Callable[..., NoReturn]:
    """Return a `check` or `place` that refuses any config, and says what would work instead."""

    def refuse_config(*_: object) -> NoReturn:
        raise Unprocessable(why)

    return refuse_config
