"""The addresses by which other machines may reach this one."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from ctypes import addressof, c_char
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIOCGIFCONF = 0x8912  # of linux/sockios.h
_REQUEST = struct.Struct("iP")  # ifconf: length and address of the buffer
_INTERFACE = struct.Struct(f"16s4x4s{2 * struct.calcsize('P')}x")  # ifreq with a sockaddr_in
_MAX_INTERFACES = 1024
_IPV6_FILE = Path("/proc/self/net/if_inet6")
_UNSUITABLE = 0x01 | 0x08 | 0x20 | 0x40
"""Flags of linux/if_addr.h: temporary (another one each day), a duplicate, deprecated, tentative."""


@attrs.frozen
class OwnAddress:
    """An address, and the name of its interface."""

    address: IPv4Address | IPv6Address
    interface: str


def find_own_addresses(family: socket.AddressFamily) -> list[OwnAddress]:
    """Return the unicast addresses of a family that are neither loopback nor link-local.

    Of what the kernel does not tell, such as IPv6 where it is disabled, there are none.
    """
    with suppress(OSError):
        found = _read_ipv6() if family is socket.AF_INET6 else _read_ipv4()
        return [each for each in found if _is_reachable(each.address)]
    return []


def _is_reachable(address: IPv4Address | IPv6Address) -> bool:
    is_local = address.is_loopback or address.is_link_local or address.is_unspecified
    return not (is_local or address.is_multicast)


def _read_ipv4() -> Iterator[OwnAddress]:
    # Not by netlink, which the unit of the service forbids.
    buffer = bytearray(_MAX_INTERFACES * _INTERFACE.size)
    pointer = (c_char * len(buffer)).from_buffer(buffer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = _REQUEST.pack(len(buffer), addressof(pointer))
        size, _ = _REQUEST.unpack(fcntl.ioctl(any_socket, _SIOCGIFCONF, request))
    for name, address in _INTERFACE.iter_unpack(buffer[:size]):
        yield OwnAddress(IPv4Address(address), name.partition(b"\0")[0].decode("ascii", "replace"))


def _read_ipv6() -> Iterator[OwnAddress]:
    for line in _IPV6_FILE.read_text("ascii", "replace").splitlines():
        address, _, _, _, flags, interface = line.split()
        if not int(flags, 16) & _UNSUITABLE:
            yield OwnAddress(IPv6Address(bytes.fromhex(address)), interface)
