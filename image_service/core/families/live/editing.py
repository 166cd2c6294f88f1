"""Lays an edit over a live ISO: files, one more initrd, boot configurations and lists of checksums."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import Literal
from image_service.core.families.live.family import MediumEdit
from image_service.core.formats.boot_configuration.boot_edit import BootEdit, ConfigFile, Dialect
from image_service.core.formats.boot_configuration.checksums import LIST_NAME, update_checksums
from image_service.core.formats.boot_configuration.editing import edit_config
from image_service.core.formats.boot_configuration.finding import Medium, find_configs
from image_service.core.formats.filesystems.el_torito import read_boot_images
from image_service.core.formats.initrd import store_archive
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.newc import Member, write_archive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.core.families.live.medium import EfiImage, LiveMedium
    from image_service.core.formats.iso_edit.editor import IsoPlan

INITRD_PATH = "image-service.img"
"""Of the additional initrd, on the medium. It is gzip: Linux skips a plain archive at an odd offset."""

_MEDIUM_CHECKS = ("rd.live.check", "rd.live.check=1", "mediacheck", "mediacheck=1")
"""Arguments that compare the medium with the checksum in its descriptor; a failed check halts the machine."""

_APPLICATION_USE = 16 * SECTOR + 883, 512  # ECMA-119 section 8.4.32: where implantisomd5 puts it
_ENFORCED = re.compile(rb"^[ \t]*set +check_signatures=enforce\b", re.MULTILINE)
MAX_LIST_BYTES = 8 << 20
"""Of a list of checksums: 100 bytes for each of 80,000 files."""
_ALGORITHMS = ("md5", "sha1", "sha256", "sha512")


def edit_medium(medium: LiveMedium, edit: MediumEdit) -> IsoPlan:
    """Return the plan of an edited ISO.

    Raises:
        FormatError: the ISO is damaged where it must be changed.
        Unprocessable: a path or an argument cannot be stored, no boot configuration takes the edit, or a list
            of checksums is too long.
    """
    files, boot, initrd = dict(edit.files), edit.boot, b""
    if edit.initrd:
        members = [Member(path, content) for path, content in sorted(edit.initrd.items())]
        initrd = store_archive(write_archive(members))
        boot = attrs.evolve(boot, initrds=(*boot.initrds, INITRD_PATH))
        files[INITRD_PATH] = initrd
    changes_boot = boot.append or boot.delete or boot.replace or boot.initrds
    if changes_boot or (edit != MediumEdit() and _has_checksum(medium)):
        boot = attrs.evolve(boot, delete=(*boot.delete, *_MEDIUM_CHECKS))
    edited = _edit_configs(medium, boot)
    files |= edited
    changes_fat = [_edit_efi_image(image, edit, boot, initrd) for image in medium.efi_images]
    if changes_boot and (medium.unified_kernels or not (edited or any(changes_fat))):
        raise Unprocessable(why_nothing_takes(medium))
    if edit.efi_files and not medium.efi_images:
        raise Unprocessable("the ISO has no FAT file system that UEFI boots from")
    files |= dict(_update_lists(medium, files))
    for path, content in files.items():
        medium.editor.put(path, (Literal(content),))
    for image in medium.efi_images:
        try:
            overlays = image.fat.finish()
        except Unprocessable as error:
            raise Unprocessable(f"{_name_fat(medium, image)}: {error.detail}") from None
        for overlay in overlays:
            medium.editor.patch(image.offset + overlay.offset, overlay.data)
    return medium.editor.finish()


def _has_checksum(medium: LiveMedium) -> bool:
    return bool(medium.base.read_at(*_APPLICATION_USE).strip(b" \0"))


def why_nothing_takes(medium: LiveMedium) -> str:
    """Return why no kernel of the ISO gets arguments or another initrd, and what works."""
    if kernels := medium.unified_kernels:
        return (
            f"arguments and initrds of a signed unified kernel are in it ({kernels[0]}): give a credential"
            " or a signed addon as its config, which are read beside it"
        )
    with suppress(FormatError):
        for image in read_boot_images(medium.base.read_at, medium.base.size):
            if image.is_emulated:
                return (
                    f"the ISO boots from an image of a disk that is at its offset {image.offset} (El Torito"
                    " emulation), and no loader in it reads the ISO: edit that image, and make the ISO again"
                )
    return (
        "no boot configuration that takes arguments or another initrd is on the ISO, of GRUB, SYSLINUX,"
        " systemd-boot or ESXi: put files alone"
    )


def _name_fat(medium: LiveMedium, image: EfiImage) -> str:
    """Return the name of a FAT file system in messages: that of the file which it is, or a partition."""
    with suppress(FormatError):
        iso = read_iso9660(medium.base.read_at, medium.base.size)
        for file in chain.from_iterable(map(iso.list_files, ("boot", "EFI", "images", "isolinux"))):
            if file.offset == image.offset:
                return f"{file.path} at offset {image.offset} of the ISO"
    return f"the EFI system partition at offset {image.offset} of the ISO"


def _edit_configs(medium: LiveMedium, boot: BootEdit) -> Mapping[str, bytes]:
    if boot == BootEdit():
        return {}
    return {config.path: edited for config, edited in _changed(medium, boot)}


def _changed(medium: Medium, boot: BootEdit) -> Iterator[tuple[ConfigFile, bytes]]:
    """Yield the configurations that an edit changes, with their new contents."""
    for config in find_configs(medium).files:
        edited = edit_config(config, boot).content
        if edited == config.content:
            continue
        if medium.read(f"{config.path}.sig") is not None or _ENFORCED.search(config.content):
            raise Unprocessable(
                f"GRUB checks the signature of {config.path} on this ISO, which an edit would break: put"
                " files alone, or give a config that needs no kernel arguments; an ISO that checks itself"
                " (rd.live.check) cannot be edited"
            )
        yield config, edited


def _edit_efi_image(image: EfiImage, edit: MediumEdit, boot: BootEdit, initrd: bytes) -> bool:
    """Edit a FAT file system; return True if a boot configuration in it is changed."""
    for path, content in edit.efi_files.items():
        image.fat.put(path, content)
    changed = False
    if boot == BootEdit():
        return changed
    for config, edited in list(_changed(FatMedium(image), boot)):
        image.fat.put(config.path, edited)
        changed = True
        if initrd and config.dialect is Dialect.SYSTEMD_BOOT:  # its kernels are in the same file system
            image.fat.put(INITRD_PATH, initrd)
    return changed


@attrs.frozen
class FatMedium:
    """The files of a FAT file system."""

    image: EfiImage

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self.image.fat.read(path)

    def list(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, which may be absent."""
        return tuple(self.image.fat.list(path) or ())


def _update_lists(medium: LiveMedium, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    digests = {
        path: {name: hashlib.new(name, content, usedforsecurity=False).hexdigest() for name in _ALGORITHMS}
        for path, content in files.items()
    }
    changed = {path: each for path, each in digests.items() if medium.editor.find(path) is not None}
    added = {path: each for path, each in digests.items() if path not in changed}
    for path in filter(LIST_NAME.fullmatch, medium.list()):
        found = medium.editor.find(path)
        if found is None:  # a directory
            continue
        if found.size > MAX_LIST_BYTES:
            raise Unprocessable(
                f"{path} has {found.size} bytes, more than {MAX_LIST_BYTES}:"
                " an edit cannot correct its checksums"
            )
        content = found.read_at(0, found.size)
        updated = update_checksums(path, content, changed, added)
        if updated != content:
            yield path, updated
