"""os-release: the file that names an operating system, in its root and in its unified kernel images."""

from __future__ import annotations

import shlex


def parse_os_release(data: bytes) -> dict[str, str]:
    """Return the variables (man os-release): assignments as a shell reads them."""
    values = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key.replace("_", "").isalnum():
            try:
                values[key] = "".join(shlex.split(value))
            except ValueError:  # quotes without end
                values[key] = value
    return values
