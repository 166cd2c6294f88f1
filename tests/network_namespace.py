"""Network namespaces of a test's own."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import missing, needs_client
from tests.fork_server import OWN_NAMESPACE, enter_network
from tests.forks import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def inside_network(namespace: Path) -> Iterator[None]:
    """Move this thread, and what it starts, into a network namespace until the block ends."""
    with OWN_NAMESPACE.open("rb") as own, namespace.open("rb") as other:
        enter_network(other)
        try:
            yield
        finally:
            enter_network(own)


@contextmanager
def running_network(*addresses: str) -> Iterator[str]:
    """Make a network namespace, move this thread into it, and return its name, until the block ends.

    Only root can make it: the test is skipped for other users.

    Args:
        addresses: of IPv4 in it; the first one is that of the default route.
    """
    needs_client("ip")
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace")
    name = f"isa{os.getpid()}"
    with ExitStack() as stack:
        try:
            _ip(f"netns add {name}")
            stack.callback(_ip, f"netns delete {name}")
            change_network(name, "link set lo up")
            for address in addresses:
                change_network(name, f"address add {address}/32 dev lo")
            change_network(name, f"route add default dev lo src {addresses[0]}")
            stack.enter_context(inside_network(NAMESPACES / name))
        except (OSError, subprocess.CalledProcessError):
            missing("ip: this machine permits no network namespace")
        yield name


def change_network(name: str, arguments: str) -> None:
    """Run ``ip`` in a network namespace."""
    _ip(f"-n {name} {arguments}")


def _ip(arguments: str) -> None:
    subprocess.run(("ip", *arguments.split()), check=True, capture_output=True, timeout=60)
