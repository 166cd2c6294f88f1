"""The client's address: the connection's other side, or what trusted proxies say in X-Forwarded-For. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from ipaddress import IPv4Network, IPv6Network

    Network: TypeAlias = IPv4Network | IPv6Network

_MAX_HOPS = 16


def client_address(peer: str, headers: Mapping[str, str], proxies: Collection[Network]) -> str:
    """Tell a request's client.

    Each proxy appends whom it was asked by, so what is to be believed is read from the end: as long as it
    is a trusted proxy that says so.

    Args:
        peer: address of the connection's other side.
        headers: field values by lower-case name.
        proxies: the networks of proxies that are trusted.

    Returns:
        the nearest address that is not a trusted proxy's.
    """
    forwarded = headers.get("x-forwarded-for")
    if not proxies or forwarded is None:
        return peer
    found = peer
    for hop in reversed(forwarded.split(",")[-_MAX_HOPS:]):
        if not _is_within(found, proxies):
            break
        told = hop.strip().removeprefix("[").removesuffix("]")
        if not _is_address(told):
            break
        found = told
    return found


def _is_within(address: str, networks: Collection[Network]) -> bool:
    if not _is_address(address):
        return False
    parsed = ip_address(address)
    return any(parsed in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
