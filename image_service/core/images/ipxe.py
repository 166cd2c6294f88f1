"""iPXE scripts that boot the kernel and the initrd of an infra-env.

iPXE splits a line at blanks, knows no quotes, expands ``${…}``, ends a command at ``&&``, ``||`` and ``;``,
and a line at ``#``. The rule for kernel arguments excludes ``$``; words that iPXE would read are refused
here.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING
from urllib.parse import quote

from image_service.core.errors import KernelArgumentInvalid, NotFound
from image_service.core.families.coreos.family import LIVEISO, ROOTFS_URL
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.core.families.live.family import Netboot
    from image_service.core.images.base_image import BaseImage

ARCHITECTURES = ("x86_64", "aarch64")
"""Those of the firmware that iPXE is made for."""
_DEFAULT_ARGUMENTS = "ignition.firstboot ignition.platform.id=metal"
"""Of a base image that does not say which it starts with."""
_INITRD = "initrd"
_OPERATORS = {"&&", "||", ";"}


def check_architecture(architecture: str) -> None:
    """Raise NotFound if iPXE does not boot an architecture."""
    if architecture not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise NotFound(f"iPXE does not boot {architecture!r:.40}; there are scripts for {known}")


def netboot_of(base: BaseImage) -> Netboot | None:
    """Return how a base image of another family than CoreOS boots without a medium; None: it is of CoreOS.

    Raises:
        NotFound: it does not; says why.
    """
    if base.family is None:
        return None
    netboot = base.family.netboot
    if isinstance(netboot, str):
        raise NotFound(f"{base.name} is of the family {base.family.name}, which {netboot}")
    files = base.iso.files
    if files.kernel is None or files.initrd is None:
        raise NotFound(
            f"{base.name} is of the family {base.family.name}, but lacks its files for a boot without the ISO"
        )
    return netboot


def netboot_arguments(
    base: BaseImage,
    rootfs_url: str,
    arguments: Sequence[KernelArgument],
    *,
    iso_url: str = "",
    config: bytes = b"",
) -> str:
    """Return the kernel arguments of a live system that fetches its root file system.

    They are those of the base image, of which the argument for the medium is replaced, edited as those of a
    minimal ISO are; of another family, those that the family needs.

    Args:
        iso_url: of the ISO with the config; only other families need both.
        config: same.

    Raises:
        NotFound: the base image does not boot without its ISO.
        KernelArgumentInvalid: one is invalid, or iPXE would read it as something else.
        KernelArgumentsTooLarge: they have too many characters.
    """
    if (netboot := netboot_of(base)) is not None:
        rootfs = base.iso.files.rootfs
        name = quote(posixpath.basename(rootfs.path), safe="") if rootfs else ""
        words = netboot.arguments.format(iso=iso_url, rootfs=rootfs_url, name=name)
        if config and netboot.config_arguments is not None:
            words += netboot.config_arguments(config)
        return _check_words(edit_arguments(words, arguments))
    kargs = base.coreos.kernel_arguments
    default = kargs.default if kargs else _DEFAULT_ARGUMENTS
    medium = [word for word in default.split() if word.startswith(LIVEISO)]
    edits = [KernelArgument(Operation.DELETE, word) for word in medium]
    edits.append(KernelArgument(Operation.APPEND, f"{ROOTFS_URL}{rootfs_url}"))
    return _check_words(edit_arguments(edit_arguments(default, edits), arguments))


def _check_words(edited: str) -> str:
    for word in edited.split():
        if word in _OPERATORS or word.startswith("#"):
            raise KernelArgumentInvalid(
                f"the kernel arguments contain a word that iPXE reads as {word[:2]!a}, not as an argument"
            )
    return edited


def render_ipxe_script(kernel_url: str, initrd_url: str, arguments: str) -> bytes:
    """Return the script; ``initrd=`` names the initrd to kernels that UEFI starts."""
    lines = (
        "#!ipxe",
        f"initrd --name {_INITRD} {initrd_url}",
        f"kernel {kernel_url} initrd={_INITRD} {arguments}",
        "boot",
    )
    return "\n".join((*lines, "")).encode()
