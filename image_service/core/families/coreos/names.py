"""The names of a build: its version, its architecture, and the URLs of its files.

Versions and architectures become parts of file names and of URL paths, so neither alphabet needs an escape in
either. An architecture has no ``-``: no two images share a file name.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from image_service.core.formats.hosts import is_authority

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}")
_ALPHABET = "must be at most {} characters, each a letter, a digit or one of {}, the first a letter or digit"
VERSION_FAULT = _ALPHABET.format(100, ". _ -")
ARCHITECTURE_FAULT = _ALPHABET.format(32, "_")


def is_web_url(value: str) -> bool:
    """Return True for an http(s) URL that can be fetched as it stands: escaped, no fragment, no user name."""
    if not re.fullmatch(r"[!-~]+", value) or "#" in value:
        return False
    try:
        split = urlsplit(value)
    except ValueError:
        return False
    return split.scheme in {"http", "https"} and is_authority(split.netloc)
