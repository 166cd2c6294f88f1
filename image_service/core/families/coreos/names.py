"""The names of a build: its version, its architecture, and the URLs of its files.

Versions and architectures become parts of file names and of URL paths, so neither alphabet needs an escape in
either. An architecture has no ``-``: no two images share a file name.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}")
_ALPHABET = "must be at most {} characters, each a letter, a digit or one of {}, the first a letter or digit"
VERSION_FAULT = _ALPHABET.format(100, ". _ -")
ARCHITECTURE_FAULT = _ALPHABET.format(32, "_")
# authority = host [ ":" port ] (RFC 3986 section 3.2) without user information
AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
MAX_PORT = 65535


def is_web_url(value: str) -> bool:
    """Return True for an http(s) URL that can be fetched as it stands: escaped, no fragment, no user name."""
    if not re.fullmatch(r"[!-~]+", value) or "#" in value:
        return False
    try:
        split = urlsplit(value)
        authority = AUTHORITY.fullmatch(split.netloc)
        if authority is None or split.scheme not in {"http", "https"}:
            return False
        if authority["v6"]:
            IPv6Address(authority["v6"])
    except ValueError:
        return False
    return authority["port"] is None or 0 < int(authority["port"]) <= MAX_PORT
