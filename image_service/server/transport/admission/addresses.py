"""Which addresses count as one client. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Network

_MAX_CACHED = 4096


def unmapped(address: str) -> str:
    """Return an address as its protocol has it: a dual-stack listener reports IPv4 ones as IPv6 ones."""
    return address.removeprefix("::ffff:") if "." in address else address


@lru_cache(_MAX_CACHED)
def address_group(address: str) -> str:
    """Return the unit that limits and shares count: an IPv4 address, or the /64 network of an IPv6 address.

    One host usually has all addresses of such a network at its disposal.
    """
    address = unmapped(address)
    if ":" not in address:
        return address
    return str(IPv6Network((address.partition("%")[0], 64), strict=False))
