"""A ramdisk as assisted-service sends one: names with and without a slash in front, links, programs."""

from __future__ import annotations

import gzip
import stat

from tests.acceptance.boot_iso import RAMDISK_REPORT

NETWORK_FILE = "/etc/assisted/network/host0/eth0.nmconnection"
_DIRECTORY, _LINK, _PROGRAM = stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777, stat.S_IFREG | 0o755
_SCRIPT = f"""\
#!/bin/busybox sh
echo "$(cat {NETWORK_FILE}) by $(readlink /etc/assisted/current)"
"""


def make_ramdisk(text: str) -> bytes:
    """A ramdisk whose program prints what is in its file, and where a link leads.

    Args:
        text: what the file holds.
    """
    members = [
        *((name, _DIRECTORY, b"") for name in _parents(NETWORK_FILE)),
        (NETWORK_FILE, stat.S_IFREG | 0o600, text.encode()),
        ("/etc/assisted/current", _LINK, b"network/host0"),
        *((name.removeprefix("/"), _DIRECTORY, b"") for name in _parents(RAMDISK_REPORT)),
        (RAMDISK_REPORT.removeprefix("/"), _PROGRAM, _SCRIPT.encode()),
        ("TRAILER!!!", 0, b""),
    ]
    return gzip.compress(b"".join(_member(*member) for member in members))


def _parents(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _member(name: str, mode: int, data: bytes) -> bytes:
    written = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(written), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + written
    return header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4)
