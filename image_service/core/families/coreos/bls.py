"""Entries of the Boot Loader Specification, type 1, as ostree writes them into ``/loader/entries``.

    title Fedora CoreOS 42 (ostree:0)
    version 1
    options $ignition_firstboot ignition.platform.id=metal ostree=/ostree/boot.1/...
    linux /ostree/fedora-coreos-.../vmlinuz-...
    initrd /ostree/fedora-coreos-.../initramfs-....img

A line is a key, a blank and a value. As by coreos-installer, only the entry that boots by default is edited.
GRUB orders them: ``loader_entry`` in ``core/formats/boot_loader``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.boot_loader.loader_entry import grub_file_key

if TYPE_CHECKING:
    from collections.abc import Iterable

ENTRIES = "loader/entries"
"""The directory of entries in the boot partition."""

_SUFFIX = ".conf"
_OPTIONS = b"options "


@attrs.frozen
class BlsEntry:
    """An entry: absolute paths of kernel and initrd in the boot partition, kernel arguments, and names."""

    kernel: str
    initramfs: str
    options: str
    title: str
    version: str


def find_default_entry(names: Iterable[str]) -> str:
    """Return which of a directory's files boots by default: the newest in GRUB's order.

    Raises:
        FormatError: none is an entry.
    """
    entries = [name for name in names if name.endswith(_SUFFIX)]
    if not entries:
        raise FormatError(f"{ENTRIES} has no entry of the boot loader (*{_SUFFIX})")
    return max(entries, key=grub_file_key)


def read_entry(content: bytes) -> BlsEntry:
    """Return a parsed entry; FormatError if it lacks a key, or has two lines of options."""
    _find_options(content)
    pairs = (line.partition(" ") for line in content.decode("utf-8", "surrogateescape").split("\n"))
    values = {key: value.strip() for key, _, value in pairs}
    missing = [key for key in ("linux", "initrd") if not values.get(key, "").startswith("/")]
    if missing:
        raise FormatError(f"the entry of the boot loader has no absolute path as {' and '.join(missing)}")
    title, version = values.get("title", ""), values.get("version", "")
    return BlsEntry(values["linux"], values["initrd"], values["options"], title, version)


def replace_options(content: bytes, options: str) -> bytes:
    """Return an entry with other kernel arguments; every other byte stays."""
    start, stop = _find_options(content)
    return content[:start] + options.encode("utf-8", "surrogateescape") + content[stop:]


def _find_options(content: bytes) -> tuple[int, int]:
    """Return where the value of the only line of options starts and ends."""
    position, found = 0, []
    for line in content.split(b"\n"):
        if line.startswith(_OPTIONS):
            found.append((position + len(_OPTIONS), position + len(line)))
        position += len(line) + 1
    if len(found) != 1:
        raise FormatError(f"the entry of the boot loader has {len(found)} lines of options; it must have one")
    return found[0]
