"""Public keys of SSH, as a line of authorized_keys has them."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from itertools import pairwise

_MAX_CHARACTERS = 64 * 1024
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def parse_ssh_keys(value: object) -> str | None:
    """Return public keys, one a line; None if there is none.

    Raises:
        ValueError: says which line is not a key, without its text, which may be a private key.
    """
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_CHARACTERS:
        raise ValueError(f"must be a string of at most {_MAX_CHARACTERS} characters")
    lines = [line.strip() for line in value.replace("\r\n", "\n").split("\n")]
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#") and not _is_public_key(line):
            raise ValueError(
                f"must be public keys, one a line, such as ssh-ed25519 AAAA…: line {number} is not"
            )
    return "\n".join(line for line in lines if line and not line.startswith("#")) or None


def _is_public_key(line: str) -> bool:
    """Return whether a line has a type and the base64 of a key of this type; options may precede them."""
    return _CONTROL.search(line) is None and any(
        _is_key_of(kind, encoded) for kind, encoded in pairwise(line.split())
    )


def _is_key_of(kind: str, encoded: str) -> bool:
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    name = kind.encode()
    return len(blob) > 4 + len(name) and blob.startswith(struct.pack(">I", len(name)) + name)
