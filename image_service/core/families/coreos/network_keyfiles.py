"""NetworkManager keyfiles: an initramfs applies those in one directory of its own.

Older systems also read the directory of the same name in the boot partition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.errors import KeyfileInvalid
from image_service.core.formats.initrd import MAX_DECOMPRESSED, compress_archive
from image_service.core.formats.newc import Member, write_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FEATURE = "live-initrd-network"
"""The feature of an ISO that reads keyfiles."""

KEYFILE_DIRECTORY = "coreos-firstboot-network"
"""Of the boot partition; in an initramfs it is in ``etc``."""

_DIRECTORY = f"etc/{KEYFILE_DIRECTORY}"
_NAME = re.compile(r"[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*\.nmconnection")
_MAX_NAME = 255  # bytes, the limit of file systems
_GROUP = re.compile(r"\[[^\[\]]+\]")
_COMMENT = ("#", ";")


def pack_keyfiles(keyfiles: Mapping[str, bytes]) -> bytes:
    """Return a ramdisk with keyfiles, by their file names."""
    return pack_members(keyfile_members(keyfiles))


def keyfile_members(keyfiles: Mapping[str, bytes]) -> Iterator[Member]:
    """Yield the members of a ramdisk with keyfiles."""
    return (Member(f"{_DIRECTORY}/{name}", content) for name, content in keyfiles.items())


def pack_members(members: Iterable[Member]) -> bytes:
    """Return a ramdisk."""
    return compress_archive(write_archive(members), MAX_DECOMPRESSED)


def check_keyfile_name(name: str) -> None:
    """Raise KeyfileInvalid unless NetworkManager reads a file of this name in the initramfs.

    It names files after their connections, with blanks and any letters. The initramfs copies them into a
    directory in ``/run``, in which NetworkManager reads none without the suffix, and no hidden ones. It would
    read a name without the suffix later, in ``/etc`` of the booted system, which is too late for Ignition and
    the root file system.
    """
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= _MAX_NAME or not _NAME.fullmatch(name):
        raise KeyfileInvalid(
            f"the keyfile's name {name!a} is none that NetworkManager reads in the initramfs:"
            " NAME.nmconnection"
        )


def check_keyfile(name: str, content: bytes) -> None:
    """Raise KeyfileInvalid if NetworkManager would not read a file; no detail quotes it, for its secrets."""
    check_keyfile_name(name)
    try:
        lines = [line.strip() for line in content.decode().split("\n")]
    except UnicodeDecodeError as error:
        raise KeyfileInvalid(f"the keyfile {name} is not UTF-8 at offset {error.start}") from None
    settings = [line for line in lines if line and not line.startswith(_COMMENT)]
    if "\0" in "".join(lines) or not settings or not _GROUP.fullmatch(settings[0]):
        raise KeyfileInvalid(
            f"the keyfile {name} is not a keyfile: it must begin with a group, as [connection]"
        )
