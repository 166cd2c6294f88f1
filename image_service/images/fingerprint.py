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

import attrs

from image_service.errors import BaseImageError
from image_service.formats.initrd import read_archives

if TYPE_CHECKING:
    from image_service.images.customization import Customization

MAX_UNPACKED_BYTES = 4 * 1024 * 1024
"""What all data URLs of a config may unpack to; what is beyond that counts as it is, packed."""

# RFC 7519: three parts in base64url, of which the second begins as all JSON objects do: {"
# The first is left alone: it tells the algorithm, not the token. Nor could it be looked for without reading
# a long text again and again, from each letter of it that a token might begin with.
_TOKEN = re.compile(rb"\.eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+")
# RFC 2397; Ignition keeps files in data URLs, which tokens hide in.
_DATA_URL = re.compile(rb";base64,([A-Za-z0-9+/]+={0,2})")
_GZIP_MAGIC = b"\x1f\x8b"


def fingerprint(customization: Customization) -> bytes:
    """Tell a customization from others, but not from itself with other tokens in it.

    Args:
        customization: as assisted-service sent it.

    Returns:
        32 bytes.
    """
    modified = customization.modified
    parts = (
        modified.isoformat().encode() if modified else b"",
        _mask(_DATA_URL.sub(_Unpacking().mask, customization.ignition)),
        _ramdisk(customization.ramdisk),
        *(
            f"{argument.operation.value} {argument.value}".encode()
            for argument in customization.kernel_arguments
        ),
    )
    hashed = sha256()
    for part in parts:
        hashed.update(b"%d " % len(part) + part)
    return hashed.digest()


def _mask(text: bytes) -> bytes:
    return _TOKEN.sub(b".token", text)


@attrs.define
class _Unpacking:
    """Masks the data URLs of one config.

    Args:
        limit: bytes that may still be unpacked.
    """

    limit: int = MAX_UNPACKED_BYTES

    def mask(self, found: re.Match[bytes]) -> bytes:
        """Give the digest of what a data URL holds, tokens masked, in the place of the data."""
        try:
            data = base64.b64decode(found[1], validate=True)
        except ValueError:
            return found[0]
        unpacked = self._unpack(data)
        if unpacked is None:
            return b";digest," + sha256(_mask(data)).hexdigest().encode()
        return b";digest of gzip," + sha256(_mask(unpacked)).hexdigest().encode()

    def _unpack(self, data: bytes) -> bytes | None:
        """What one whole gzip member holds; None: it is none, is not alone, or holds too much."""
        if not data.startswith(_GZIP_MAGIC) or not self.limit:
            return None
        unpacker = zlib.decompressobj(wbits=31)
        try:
            unpacked = unpacker.decompress(data, self.limit)
        except zlib.error:
            self.limit = 0  # nobody knows how much it was
            return None
        self.limit -= len(unpacked)
        return unpacked if unpacker.eof and not unpacker.unused_data else None


def _ramdisk(ramdisk: bytes | None) -> bytes:
    """The digest of its members; of its bytes, where they cannot be read."""
    if ramdisk is None:
        return b""
    hashed = sha256()
    try:
        for member in read_archives(ramdisk):
            name = member.name.encode("utf-8", "surrogateescape")
            hashed.update(b"%d %d %d " % (member.mode, len(name), len(member.data)) + name + member.data)
    except BaseImageError:
        return sha256(ramdisk).digest()
    return hashed.digest()
