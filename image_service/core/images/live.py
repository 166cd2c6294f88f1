"""Composition over a live ISO of a family other than CoreOS."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ConfigInvalid, IgnitionInvalid, Unprocessable
from image_service.core.extents import Extent, ExtentMap, FileExtent, Literal, Overlay, Zeros
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import Operation
from image_service.core.families.live.editing import INITRD_PATH, edit_medium
from image_service.core.families.live.family import MediumEdit
from image_service.core.families.live.medium import LiveMedium
from image_service.core.families.live.others import IGNITION_CONFIG
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.initrd import store_archive
from image_service.core.formats.newc import MAX_MEMBER, Member, frame_member, write_archive
from image_service.core.images.boot_areas import edited_areas, find_boot_areas
from image_service.core.images.boot_image import BootImage, last_modified, make_etag
from image_service.core.images.compose import ALIGNMENT
from image_service.core.images.config_medium import MEDIA, write_config_medium
from image_service.core.images.ipxe import netboot_of
from image_service.core.images.layouts import newest_layout

CONFIG_DRIVE = ("config-2", "openstack/latest/user_data")
"""Of CoreOS: Ignition reads it with ``ignition.platform.id=openstack``."""

_NO_DATE = datetime(2000, 1, 1, tzinfo=UTC)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.core.families.coreos.kargs import KernelArgument
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.customization import Customization
    from image_service.core.images.layouts import ByteLayout


def compose_live(
    base: BaseImage,
    customization: Customization,
    file_name: str,
    layout: ByteLayout | None = None,
    *,
    more: MediumEdit | None = None,
) -> BootImage:
    """Lay a config and kernel arguments over an ISO. It reads the ISO's directories, which may block.

    Args:
        more: files that are laid over it, too.

    Raises:
        Unprocessable: the family has no place for the config, or an argument cannot be passed on.
        FormatError: the ISO cannot be edited.
    """
    family = base.family
    if family is None:
        raise TypeError(f"{base.name} is of CoreOS")
    medium = LiveMedium(ExtentMap((FileExtent(base.file, 0, base.file.size),)))
    edit = MediumEdit()
    if customization.ignition:
        check_config(customization.ignition, family, base.name)
        edit = family.place(medium, customization.ignition)
    arguments = boot_edit_of(customization.kernel_arguments)
    boot = attrs.evolve(
        edit.boot,
        append=edit.boot.append + arguments.append,
        delete=edit.boot.delete + arguments.delete,
        replace=arguments.replace,
    )
    edit = attrs.evolve(edit, boot=boot)
    if more is not None:
        edit = attrs.evolve(
            edit,
            files={**edit.files, **more.files},
            initrd={**edit.initrd, **more.initrd},
            efi_files={**edit.efi_files, **more.efi_files},
        )
    plan = edit_medium(medium, edit)
    config = {*edit.files, INITRD_PATH} if customization.ignition else set()
    layout = layout or newest_layout()
    return BootImage(
        extents=plan.apply(medium.base),
        etag=make_etag(f"{family.name} {base.sha256}", plan.overlays, layout.version, plan.tail),
        modified=last_modified(base.iso.created, customization.modified),
        file_name=file_name,
        areas=edited_areas(find_boot_areas(base.iso), plan, config),
    )


def compose_config_medium(
    base: BaseImage, customization: Customization, file_name: str, layout: ByteLayout
) -> BootImage:
    """Return a small ISO with the config, for a second medium beside the image that boots.

    Raises:
        Unprocessable: the family looks for no such medium, or there is no config.
    """
    found = CONFIG_DRIVE if base.family is None else base.family.medium
    if found is None or (base.family is None and not customization.ignition):
        raise Unprocessable(
            f"{base.name} is of {base.family_name}, which reads no config from another medium"
        )
    if base.family is not None and customization.ignition:
        check_config(customization.ignition, base.family, base.name)
    label, path = found
    created = customization.modified or base.iso.created or _NO_DATE
    files = {path if isinstance(path, str) else path(customization.ignition): customization.ignition}
    content = write_config_medium(label, MEDIA[label].complete(files), created)
    return BootImage(
        extents=ExtentMap((Literal(content),)),
        etag=make_etag(f"config {label}", [Overlay(0, Literal(content))], layout.version),
        modified=last_modified(None, customization.modified),
        file_name=file_name,
        is_iso=False,
    )


def compose_live_initrd(
    base: BaseImage, customization: Customization, file_name: str, layout: ByteLayout
) -> BootImage:
    """Return the initrd of an ISO of another family than CoreOS, with the config, or the ISO, behind it.

    Raises:
        NotFound: the family does not boot without its ISO.
        Unprocessable: it has no place for the config, or the ISO is too large for an initrd.
    """
    family, initrd, netboot = base.family, base.iso.files.initrd, netboot_of(base)
    if family is None or initrd is None or netboot is None:
        raise TypeError(f"{base.name} is of CoreOS")
    extents: list[Extent] = [FileExtent(base.file, initrd.offset, initrd.length)]
    overlays = []
    identity = f"initrd {family.name} {base.sha256}"
    if customization.ignition:
        check_config(customization.ignition, family, base.name)
        members = [] if netboot.config is None else [Member(netboot.config, customization.ignition)]
        config = Literal(store_archive(write_archive(members)) if members else b"")
        extents += [Zeros(-initrd.length % ALIGNMENT), config]
        overlays = [Overlay(initrd.length, config)]
    if netboot.iso is not None:
        iso = compose_live(base, customization, file_name, layout)
        if iso.size > MAX_MEMBER:
            raise Unprocessable(
                f"{base.name} has {iso.size} bytes, and a file of an initrd at most {MAX_MEMBER}"
            )
        head, end = frame_member(netboot.iso, iso.size)
        start = sum(extent.length for extent in extents)
        extents += [Zeros(-start % ALIGNMENT), Literal(head), *iso.extents.extents, Literal(end)]
        identity += f" {iso.etag}"
    return BootImage(
        extents=ExtentMap(tuple(extent for extent in extents if extent.length)),
        etag=make_etag(identity, overlays, layout.version),
        modified=last_modified(base.iso.created, customization.modified),
        file_name=file_name,
        is_iso=False,
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


def check_config(config: bytes, family: LiveFamily | None, name: str) -> None:
    """Refuse a config that a family would not read.

    Args:
        family: None: CoreOS.
        name: of the base image, in the message.

    Raises:
        Unprocessable: the message has the line and column, and nothing of the config.
    """
    if family is None:
        try:
            check_ignition(config)
        except IgnitionInvalid as error:
            raise ConfigInvalid(f"{name} is of CoreOS, whose config is Ignition: {error.detail}") from None
        return
    with suppress(IgnitionInvalid):
        check_ignition(config)
        if family.config != IGNITION_CONFIG:
            raise Unprocessable(
                f"{name} is of the family {family.name}, whose config is a {family.config}; the infra-env has"
                " an Ignition config in its place: set its family_config, to an empty string for none"
            )
    family.check(config)
