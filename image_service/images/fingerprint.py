"""What two customizations of one infra-env have in common while nobody has changed it.

assisted-service may sign a new token into every answer, and compress a ramdisk anew. So what looks like a
JSON Web Token counts as the same as any other, and a ramdisk by what it unpacks to.
"""

from __future__ import annotations

import base64
import re
import zlib
from hashlib import sha256
from typing import TYPE_CHECKING

from image_service.coreos.initrd import read_archives
from image_service.errors import BaseImageError

if TYPE_CHECKING:
    from image_service.images.customization import Customization

# RFC 7519: three parts in base64url, of which the first begins as all JSON objects do: {"
_TOKEN = re.compile(rb"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# RFC 2397; Ignition keeps files in data URLs, which tokens hide in.
_DATA_URL = re.compile(rb";base64,([A-Za-z0-9+/]+={0,2})")
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_UNPACKED = 16 * 1024 * 1024


def fingerprint(customization: Customization) -> bytes:
    """Tell a customization from others, but not from itself with other tokens in it.

    Args:
        customization: as assisted-service sent it.

    Returns:
        32 bytes.
    """
    hashed = sha256()
    modified = customization.modified
    parts = [
        modified.isoformat().encode() if modified else b"",
        _mask(_DATA_URL.sub(_mask_data, customization.ignition)),
        *(
            f"{argument.operation.value} {argument.value}".encode()
            for argument in customization.kernel_arguments
        ),
    ]
    for part in parts:
        hashed.update(b"%d " % len(part) + part)
    hashed.update(_ramdisk(customization.ramdisk))
    return hashed.digest()


def _mask(text: bytes) -> bytes:
    return _TOKEN.sub(b"<token>", text)


def _mask_data(found: re.Match[bytes]) -> bytes:
    """The digest of what a data URL holds, tokens masked."""
    try:
        data = base64.b64decode(found[1], validate=True)
    except ValueError:
        return found[0]
    return b";digest," + sha256(_mask(_unpacked(data))).hexdigest().encode()


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_GZIP_MAGIC):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(data, _MAX_UNPACKED)
    except zlib.error:
        return data
    return unpacked if unpacker.eof else data


def _ramdisk(ramdisk: bytes | None) -> bytes:
    """The digest of its members; of its bytes, where they cannot be read."""
    if not ramdisk:
        return b"none"
    hashed = sha256()
    try:
        for member in read_archives(ramdisk):
            name = member.name.encode("utf-8", "surrogateescape")
            hashed.update(b"%d %d %d " % (member.mode, len(name), len(member.data)) + name + member.data)
    except BaseImageError:
        return sha256(ramdisk).digest()
    return hashed.digest()
