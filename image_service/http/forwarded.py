"""The client's address: the connection's other side, or what trusted proxies say in X-Forwarded-For. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Network

    Network: TypeAlias = IPv4Network | IPv6Network

_MAX_HOPS = 16
_MAX_LENGTH = 64  # of one: an IPv6 address in brackets with its zone and port
_MAX_PARSED = 4096
# Some proxies put the port behind the address, which is in brackets then if it has colons itself.
_IN_BRACKETS = re.compile(r"\[(.*)\](?::[0-9]+)?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]+")


def client_address(peer: str, headers: Mapping[str, str], proxies: Collection[Network]) -> str:
    """Tell a request's client.

    Each proxy appends whom it was asked by, so what is to be believed is read from the end: as long as it
    is a trusted proxy that says so.

    Args:
        peer: address of the connection's other side.
        headers: field values by lower-case name.
        proxies: the networks of proxies that are trusted.

    Returns:
        the nearest address that is not a trusted proxy's, always in the same spelling.
    """
    forwarded = headers.get("x-forwarded-for")
    if not proxies or forwarded is None:
        return peer
    found = _parse(peer)
    if found is None:
        return peer
    for hop in reversed(forwarded.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
        if not any(found in network for network in proxies):
            break
        told = _parse(hop.strip()) if len(hop) <= _MAX_LENGTH else None
        if told is None:
            break
        found = told
    return str(found)


@lru_cache(_MAX_PARSED)
def _parse(hop: str) -> IPv4Address | IPv6Address | None:
    """The address of a hop; None: it names none, as ``unknown`` does."""
    found = _IN_BRACKETS.fullmatch(hop) or _WITH_PORT.fullmatch(hop)
    try:
        address = ip_address(found[1] if found else hop)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
