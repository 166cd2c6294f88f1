"""The names of a build: its version and its architecture.

Versions and architectures become parts of file names and of URL paths, so neither alphabet needs an escape in
either. An architecture has no ``-``: no two images share a file name.
"""

from __future__ import annotations

import re

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}")
_ALPHABET = "must be at most {} characters, each a letter, a digit or one of {}, the first a letter or digit"
VERSION_FAULT = _ALPHABET.format(100, ". _ -")
ARCHITECTURE_FAULT = _ALPHABET.format(32, "_")
