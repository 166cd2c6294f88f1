"""OpenPGP key rings (RFC 9580): public keys, binary or in ASCII armor."""

from __future__ import annotations

import base64
import binascii
import re

from image_service.core.errors import FormatError

# Encodings of RFC 9580 section 6.2; the checksum behind the data is optional.
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[ -~]+\r?\n)*\r?\n"
    rb"([A-Za-z0-9+/=\s]+?)(?:\r?\n=[A-Za-z0-9+/]{4})?\s*-----END"
)
_PUBLIC_KEY = 6  # packet type ID of RFC 9580 section 5
_KEYBOX = re.compile(rb"(?s).{8}KBXf")  # GnuPG's own form of a key ring, which gpgv reads too


def read_key_ring(content: bytes) -> bytes:
    """Return the keys of a file, without armor, as gpgv reads them.

    Raises:
        FormatError: the file does not begin with a public key, or its armor is damaged.
    """
    try:
        blocks = _ARMOR.findall(content)
        keys = b"".join(base64.b64decode(b"".join(block.split())) for block in blocks) or content
    except binascii.Error as error:
        raise FormatError(f"the ASCII armor is damaged: {error}") from None
    if _packet_type(keys) != _PUBLIC_KEY and not _KEYBOX.match(keys):
        raise FormatError("it does not begin with an OpenPGP public key; gpg --export writes such a file")
    return keys


def _packet_type(packets: bytes) -> int | None:
    """The type of the first packet, in the present or the legacy format; None: it is not a packet."""
    header = packets[0] if packets else 0
    if header < 0x80:  # noqa: PLR2004 - bit 7 is always set
        return None
    return header & 0x3F if header & 0x40 else header >> 2 & 0x0F
