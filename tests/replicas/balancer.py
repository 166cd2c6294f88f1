"""haproxy before the replicas: per connection, as kube-proxy balances, or per request, as an Ingress does."""

from __future__ import annotations

import enum
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client
from tests.acceptance.tenants import wait_for
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_TIMEOUT_SECONDS = 60


class Mode(enum.Enum):
    """What is balanced; the value is haproxy's ``mode``."""

    CONNECTIONS = "tcp"
    REQUESTS = "http"


# As docs/replicas.md recommends, with shorter intervals: a test takes replicas away more often.
_COMMON = """
global
    stats socket {directory}/admin level admin
defaults
    timeout connect 1s
    timeout client 1h
    timeout server 1h
    timeout check 2s
    retries 3
    option redispatch
"""
_BALANCED = """
listen {mode}
    mode {mode}
    bind 127.0.0.1:{port}
    balance random(1)
    option httpchk GET /health
    default-server check inter 500ms fall 2 rise 1
"""


@attrs.frozen
class Balancer:
    """A running haproxy.

    Args:
        directory: has its administrative socket.
        ports: on 127.0.0.1, by what is balanced.
    """

    directory: Path
    ports: Mapping[Mode, int]

    def host(self, mode: Mode) -> str:
        """Return address and port."""
        return f"127.0.0.1:{self.ports[mode]}"

    def drain(self, replica: int) -> None:
        """Open no new connection to a replica; open ones go on."""
        self._set_state(replica, "drain")

    def set_ready(self, replica: int) -> None:
        """Use a replica again, once its checks pass."""
        self._set_state(replica, "ready")

    def wait_until_up(self, *replicas: int) -> None:
        """Wait until checks of these replicas have passed."""
        servers = {(mode.value, f"r{replica}") for mode in Mode for replica in replicas}
        wait_for(lambda: servers <= self._up())

    def _set_state(self, replica: int, state: str) -> None:
        for mode in Mode:
            answer = self._command(f"set server {mode.value}/r{replica} state {state}")
            assert not answer.strip(), answer

    def _up(self) -> set[tuple[str, str]]:
        rows = [line.split(",") for line in self._command("show stat").splitlines()]
        status = rows[0].index("status")
        return {(row[0], row[1]) for row in rows if len(row) > status and row[status] == "UP"}

    def _command(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(str(self.directory / "admin"))
            connection.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@contextmanager
def running_balancer(directory: Path, servers: Sequence[str]) -> Iterator[Balancer]:
    """Run haproxy in an empty directory until the block ends.

    Args:
        directory: with a short name: that of a socket has 107 bytes at most.
        servers: addresses with ports of the replicas, from 1.
    """
    balancer = Balancer(directory, {mode: free_port() for mode in Mode})
    lines = [_COMMON.format(directory=directory)]
    for mode, port in balancer.ports.items():
        lines.append(_BALANCED.format(mode=mode.value, port=port))
        lines.extend(f"    server r{number} {host}\n" for number, host in enumerate(servers, 1))
    configuration = directory / "haproxy.cfg"
    configuration.write_text("".join(lines))
    command = (needs_client("haproxy"), "-db", "-f", configuration)
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for((directory / "admin").exists)
            yield balancer
        finally:
            process.kill()
