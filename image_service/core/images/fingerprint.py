"""The fingerprint of a customization: equal for two responses about an unchanged infra-env.

assisted-service may sign a new token for every response, and compress a ramdisk again. So all JSON Web Tokens
count as equal, and a ramdisk by its content.
"""

from __future__ import annotations

import base64
import re
import zlib
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.initrd import read_archives

if TYPE_CHECKING:
    from image_service.core.images.customization import Customization

MAX_UNPACKED_BYTES = 4 * 1024 * 1024
"""The limit of all decompressed data URLs of a config; beyond it, the compressed bytes count."""

# RFC 7519: three parts in base64url; the second starts like all JSON objects, with {"
# The first, which names the algorithm, is kept: a search for it would read long texts again from each letter.
_TOKEN = re.compile(rb"\.eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+")
# RFC 2397; Ignition stores files, with tokens in them, as data URLs.
_DATA_URL = re.compile(rb";base64,([A-Za-z0-9+/]+={0,2})")
_GZIP_MAGIC = b"\x1f\x8b"


def fingerprint(customization: Customization) -> bytes:
    """Return 32 bytes that are equal for customizations that differ only in tokens and compression."""
    modified = customization.modified
    parts = (
        modified.isoformat().encode() if modified else b"",
        _mask_tokens(_DATA_URL.sub(_DataUrlMask(), customization.ignition)),
        _digest_ramdisk(customization.ramdisk),
        *(
            f"{argument.operation.value} {argument.value}".encode()
            for argument in customization.kernel_arguments
        ),
    )
    digest = sha256()
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.digest()


def _mask_tokens(text: bytes) -> bytes:
    return _TOKEN.sub(b".token", text)


@attrs.define
class _DataUrlMask:
    """Masks the data URLs of one config."""

    limit: int = MAX_UNPACKED_BYTES  # bytes that may still be decompressed

    def __call__(self, found: re.Match[bytes]) -> bytes:
        """Return the digest of a data URL's content, tokens masked, in place of the data."""
        try:
            data = base64.b64decode(found[1], validate=True)
        except ValueError:
            return found[0]
        content = self._decompress(data)
        if content is None:
            return b";digest," + sha256(_mask_tokens(data)).hexdigest().encode()
        return b";digest of gzip," + sha256(_mask_tokens(content)).hexdigest().encode()

    def _decompress(self, data: bytes) -> bytes | None:
        """Return the content of one whole gzip member; None if it is none, not alone, or too large."""
        if not data.startswith(_GZIP_MAGIC) or not self.limit:
            return None
        stream = zlib.decompressobj(wbits=31)
        try:
            content = stream.decompress(data, self.limit)
        except zlib.error:
            self.limit = 0  # how much was decompressed is unknown
            return None
        self.limit -= len(content)
        return content if stream.eof and not stream.unused_data else None


def _digest_ramdisk(ramdisk: bytes | None) -> bytes:
    """Return the digest of its members, or of its bytes if they cannot be read."""
    if ramdisk is None:
        return b""
    digest = sha256()
    try:
        for member in read_archives(ramdisk):
            name = member.name.encode("utf-8", "surrogateescape")
            digest.update(b"%d %d %d " % (member.mode, len(name), len(member.data)) + name + member.data)
    except FormatError:
        return sha256(ramdisk).digest()
    return digest.digest()
