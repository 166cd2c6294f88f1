"""The client's address: the peer's, or one that trusted proxies report in X-Forwarded-For. Pure."""

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
_MAX_CACHED = 4096
# Some proxies append the port; an address with colons is then in brackets.
_IN_BRACKETS = re.compile(r"\[(.*)\](?::[0-9]+)?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]+")


def client_address(peer: str, headers: Mapping[str, str], proxies: Collection[Network]) -> str:
    """Return the nearest address that is not a trusted proxy's, in its canonical form.

    Each proxy appends the address of its client, so the list is read from the end, as long as a trusted proxy
    has appended the entry.

    Args:
        headers: field values by lower-case name.
        proxies: networks of trusted proxies.
    """
    forwarded = headers.get("x-forwarded-for")
    if not proxies or forwarded is None:
        return peer
    client = _parse(peer)
    if client is None:
        return peer
    for hop in reversed(forwarded.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
        if not any(client in network for network in proxies):
            break
        forwarder = _parse(hop.strip()) if len(hop) <= _MAX_LENGTH else None
        if forwarder is None:
            break
        client = forwarder
    return str(client)


def is_trusted_proxy(peer: str, proxies: Collection[Network]) -> bool:
    """Return True if a connection comes from a trusted proxy."""
    address = _parse(peer) if proxies else None
    return address is not None and any(address in network for network in proxies)


@lru_cache(_MAX_CACHED)
def _parse(hop: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a hop; None if it has none, like ``unknown``."""
    match = _IN_BRACKETS.fullmatch(hop) or _WITH_PORT.fullmatch(hop)
    try:
        address = ip_address(match[1] if match else hop)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
