"""Where replicas run: in network namespaces of the tests' own, or else on addresses of loopback.

A replica in a namespace reaches this machine by the address of a bridge alone, as a pod reaches other hosts:
what it needs listens there (`TcpProxy`). Namespaces need root and a kernel that makes bridges.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LISTEN_PORT = 8080
_FIRST_CLIENT = 101
_CLIENTS = 8


@attrs.frozen
class Network:
    """The addresses of replicas and of their clients.

    Args:
        host: this machine as the replicas see it; the balancer's requests come from there.
        prefix: of all IPv4 addresses here, with its last dot.
        port: of each replica.
        namespaces: by replica, from 1; empty: the replicas are on loopback.
    """

    host: str
    prefix: str
    port: int
    namespaces: Sequence[str] = ()

    def address(self, replica: int) -> str:
        """Return the address of a replica, from 1."""
        return f"{self.prefix}{replica}"

    def client(self, number: int) -> str:
        """Return another address of this machine, from 0, for a client that needs one of its own."""
        return f"{self.prefix}{_FIRST_CLIENT + number}"

    def namespace(self, replica: int) -> str:
        """Return the namespace of a replica; empty: it is on loopback."""
        return self.namespaces[replica - 1] if self.namespaces else ""


@contextmanager
def running_network(replicas: int) -> Iterator[Network]:
    """Make a network until the block ends."""
    with ExitStack() as stack:
        try:
            network = _make_namespaces(stack, replicas)
        except (OSError, subprocess.CalledProcessError):  # no root, no iproute2, or a kernel without them
            stack.close()
            network = Network("127.0.0.1", "127.0.1.", free_port())
        yield network


def _make_namespaces(stack: ExitStack, replicas: int) -> Network:
    own = os.getpid()
    bridge, prefix = f"isb{own}", f"10.231.{own % 256}."
    network = Network(
        f"{prefix}254", prefix, _LISTEN_PORT, [f"isn{own}-{number}" for number in range(1, replicas + 1)]
    )
    _ip(f"link add {bridge} type bridge")
    stack.callback(_ip, f"link delete {bridge}")
    _ip(f"address add {network.host}/24 dev {bridge}")
    for number in range(_CLIENTS):
        _ip(f"address add {network.client(number)}/24 dev {bridge}")
    _ip(f"link set {bridge} up")
    for number, name in enumerate(network.namespaces, 1):
        _ip(f"netns add {name}")
        stack.callback(_ip, f"netns delete {name}")
        outside = f"isv{own}-{number}"
        _ip(f"link add {outside} type veth peer name eth0 netns {name}")
        _ip(f"link set {outside} master {bridge} up")
        _ip(f"-n {name} address add {network.address(number)}/24 dev eth0")
        _ip(f"-n {name} link set eth0 up")
        _ip(f"-n {name} link set lo up")
    return network


def _ip(arguments: str) -> None:
    subprocess.run(("ip", *arguments.split()), check=True, capture_output=True, timeout=60)
