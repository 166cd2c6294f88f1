"""Which program or firmware a client is, by the fields of its requests."""

from __future__ import annotations

import re
from functools import lru_cache

_QEMU_READ_AHEAD_BYTES = 256 * 1024
_SECTOR = 512
DOCTOR = "image-service doctor"
_NAMES = (
    ("idrac", "iDRAC"),
    (r"\bilo\b|integrated lights-out|hpe?[- ]ilo", "iLO"),
    (r"\bxcc\b|xclarity|lenovo", "XCC"),
    ("supermicro|smci|aten", "Supermicro"),
    (r"megarac|\bami\b", "AMI"),
    ("openbmc", "OpenBMC"),
    ("uefihttpboot", "UEFI HTTP Boot (OVMF, EDK2)"),
    ("ipxe", "iPXE"),
    (r"\bgrub\b", "GRUB"),
    ("qemu", "qemu"),
    ("nbdkit", "nbdkit"),
    ("httpfs", "httpfs2"),
    ("coreos-installer", "coreos-installer"),
    ("ignition", "Ignition"),
    ("aria2", "aria2"),
    ("^curl/", "curl"),
    ("^wget", "Wget"),
    ("sushy", "sushy-tools"),
    ("python-requests", "Python requests"),
    ("go-http-client", "Go"),
    ("^image-service-doctor", DOCTOR),
    ("image-service", "image-service"),
    ("mozilla/", "browser"),
)
"""Patterns of user agents, in any case, with the names of the clients; the first match counts.

No user agent of a BMC was measured: the patterns are the names that vendors use.
"""
MACHINES = frozenset({"UEFI HTTP Boot (OVMF, EDK2)", "iPXE", "GRUB"})
"""Names of the clients that are a machine that boots, even if they read an image as a file."""
TOOLS = frozenset(
    {"curl", "Wget", "aria2", "browser", "Python requests", "Go", "coreos-installer", "image-service", DOCTOR}
)
"""Names of the clients that people and programs download with: no machine waits for such a download."""
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), name) for pattern, name in _NAMES)


MAX_USER_AGENT = 200
"""Characters of a user agent that are read and shown."""


def recognize_client(user_agent: str, accept: str, range_bytes: int) -> str | None:
    """Return the name of the client that sent a request; None if it is not known.

    Args:
        user_agent: as sent; empty if the request has none.
        accept: the same of Accept.
        range_bytes: length of the range that it gets; 0: none.
    """
    if user_agent:
        return _find_name(user_agent[:MAX_USER_AGENT])
    # qemu reads by libcurl without a user agent: 256 KiB more than the sectors that the guest wants.
    ahead = range_bytes - _QEMU_READ_AHEAD_BYTES
    return "qemu" if accept == "*/*" and ahead > 0 and ahead % _SECTOR == 0 else None


@lru_cache(1024)
def _find_name(user_agent: str) -> str | None:
    return next((name for pattern, name in _PATTERNS if pattern.search(user_agent)), None)
