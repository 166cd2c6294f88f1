"""NetworkManager keyfiles in a ramdisk: the live system applies those in this directory of its initrd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.formats.initrd import MAX_DECOMPRESSED, compress_archive
from image_service.formats.newc import Member, write_archive

if TYPE_CHECKING:
    from collections.abc import Mapping

FEATURE = "live-initrd-network"
"""What the features of an ISO that reads keyfiles contain."""

_DIRECTORY = "etc/coreos-firstboot-network"


def pack_keyfiles(keyfiles: Mapping[str, bytes]) -> bytes:
    """Return a ramdisk with keyfiles, by their file names."""
    members = [Member(f"{_DIRECTORY}/{name}", content) for name, content in keyfiles.items()]
    return compress_archive(write_archive(members), MAX_DECOMPRESSED)
