"""Composition over a live ISO of a family other than CoreOS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import IgnitionInvalid, Unprocessable
from image_service.core.extents import ExtentMap, FileExtent
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import Operation
from image_service.core.families.live.editing import edit_medium
from image_service.core.families.live.family import MediumEdit
from image_service.core.families.live.medium import LiveMedium
from image_service.core.families.live.others import FLATCAR
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.images.boot_image import BootImage, last_modified, make_etag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.core.families.coreos.kargs import KernelArgument
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout


def compose_live(
    base: BaseImage, family: LiveFamily, customization: Customization, file_name: str, layout: ByteLayout
) -> BootImage:
    """Lay a config and kernel arguments over an ISO. It reads the ISO's directories, which may block.

    Raises:
        Unprocessable: the family has no place for the config, or an argument cannot be passed on.
        FormatError: the ISO cannot be edited.
    """
    medium = LiveMedium(ExtentMap((FileExtent(base.file, 0, base.file.size),)))
    edit = MediumEdit()
    if customization.ignition:
        _check_config(customization.ignition, family, base.name)
        edit = family.place(medium, customization.ignition)
    arguments = boot_edit_of(customization.kernel_arguments)
    boot = attrs.evolve(
        edit.boot,
        append=edit.boot.append + arguments.append,
        delete=edit.boot.delete + arguments.delete,
        replace=arguments.replace,
    )
    plan = edit_medium(medium, attrs.evolve(edit, boot=boot))
    return BootImage(
        extents=plan.apply(medium.base),
        etag=make_etag(f"{family.name} {base.sha256}", plan.overlays, layout.version, plan.tail),
        modified=last_modified(base.iso.created, customization.modified),
        file_name=file_name,
    )


def boot_edit_of(arguments: Sequence[KernelArgument]) -> BootEdit:
    """Return kernel arguments as an edit of boot configurations; one that is replaced is ``KEY=OLD=NEW``."""
    words: dict[Operation, list[str]] = {operation: [] for operation in Operation}
    for argument in arguments:
        words[argument.operation] += argument.value.split()
    pairs = []
    for word in words[Operation.REPLACE]:
        key, old, new = word.split("=", 2)
        pairs.append((f"{key}={old}", f"{key}={new}"))
    return BootEdit(
        append=tuple(words[Operation.APPEND]), delete=tuple(words[Operation.DELETE]), replace=tuple(pairs)
    )


def _check_config(config: bytes, family: LiveFamily, name: str) -> None:
    try:
        check_ignition(config)
    except IgnitionInvalid:
        return
    if family is not FLATCAR:
        raise Unprocessable(
            f"{name} is of the family {family.name}, whose config is a {family.config}; the infra-env has an"
            " Ignition config in its place: set its family_config, to an empty string for none"
        )
