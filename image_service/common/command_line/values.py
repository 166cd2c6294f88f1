"""Values of arguments: bytes, seconds and directories."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_BYTES = re.compile("([0-9]{1,18})([KMGT]?)(?:i?B)?")


def parse_bytes(text: str) -> int:
    """Return a number of bytes; K, M, G and T are powers of 1024."""
    match = _BYTES.fullmatch(text)
    if not match or not (count := int(match[1]) << _UNITS[match[2]]):
        raise argparse.ArgumentTypeError(f"{text} is not a number of bytes, such as 500M or 2G")
    return count


def parse_directory(text: str) -> Path:
    """Return the path of a directory in which files can be made."""
    path = Path(text)
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} is not a directory, or cannot be written")
    return path


def parse_seconds(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds
