"""The layout of a live ISO of any family: what is known of it before a config is laid over it."""

from __future__ import annotations

import enum
from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs

from image_service.core.formats.reading import Span  # noqa: TC001 - same


class BootPart(enum.Enum):
    """The parts of an ISO that a machine reads while it boots, in this order."""

    FIRMWARE = "firmware"
    BOOT_LOADER = "boot loader"
    KERNEL = "kernel"
    INITRD = "initrd"
    CONFIG = "config"
    ROOTFS = "root file system"


@attrs.frozen
class BootFiles:
    """The files that are booted without the ISO; None: it has no such file."""

    kernel: Span | None = None
    initrd: Span | None = None
    rootfs: Span | None = None
    ins_file: Span | None = None
    initrd_addrsize: Span | None = None


@attrs.frozen
class IsoLayout:
    """The layout of a live ISO.

    Args:
        volume_id: by which the boot loader finds the image.
        created: when the volume was made, UTC, whole seconds.
        size: bytes of the file.
        files: that are booted without it.
        firmware: the files that firmware reads.
        boot_loader: the files that boot loaders read, beside kernels and initrds.
        live: kernels, initrds and root file systems of the live system, beside those of `files`.
    """

    volume_id: str
    created: datetime | None
    size: int
    files: BootFiles = BootFiles()
    firmware: tuple[Span, ...] = ()
    boot_loader: tuple[Span, ...] = ()
    live: tuple[tuple[BootPart, Span], ...] = ()
