"""The address by which other machines probably reach this one."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

_DISCARD_PORT = 9
# Addresses of documentation (RFC 5737 and 3849), which no network has: the default route leads to them.
_TARGETS = {socket.AF_INET: "203.0.113.1", socket.AF_INET6: "2001:db8::1"}
_IPV6_ADDR_PREFERENCES, _IPV6_PREFER_SRC_PUBLIC = 72, 2  # of linux/in6.h; Python does not name them


def find_default_address(family: socket.AddressFamily) -> IPv4Address | IPv6Address | None:
    """Return the address of the interface that has the default route; None: there is no such route.

    Nothing is sent: a UDP socket gets its source address when it is connected. Of an interface's IPv6
    addresses it is not a temporary one, which changes every day.
    """
    is_ipv6 = family is socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if is_ipv6:
                probe.setsockopt(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _IPV6_PREFER_SRC_PUBLIC)
            probe.connect((_TARGETS[family], _DISCARD_PORT))
            address = ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError:
        return None
    # A link-local address of IPv6 needs a zone, which is another one on each client.
    is_usable = not (address.is_loopback or (is_ipv6 and address.is_link_local))
    return address if is_usable else None
