"""One replica: the service as a process at its own place, with its own DATA_DIR and way to the database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from tests import forks
from tests.acceptance.service import CHECKOUT, SERVE, Service
from tests.acceptance.tenants import wait_for
from tests.replicas.tcp_proxy import TcpProxy  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.forks import Process

_STOP_SECONDS = 100
_SHOWN_BYTES = 4000


@attrs.define(eq=False)
class Replica:
    """A replica, running or not.

    Args:
        number: from 1.
        address: its IP address.
        port: where it serves images.
        directory: has its DATA_DIR and its output.
        environment: its variables.
        namespace: of its network; empty: that of the tests.
        database: the proxy through which it alone reaches the database.
    """

    number: int
    address: str
    port: int
    directory: Path
    environment: Mapping[str, str]
    namespace: str
    database: TcpProxy
    _process: Process | None = None

    @property
    def service(self) -> Service:
        """The running service."""
        assert self._process is not None
        return Service(self._process, f"http://{self.host}", "", self.directory, None, None)

    @property
    def host(self) -> str:
        """Address and port."""
        return f"{self.address}:{self.port}"

    @property
    def _end_of_output(self) -> str:
        return self.service.output[-_SHOWN_BYTES:].decode(errors="replace")

    def start(self, command: Sequence[str] = SERVE, **environment: str) -> None:
        """Start it, without waiting.

        Args:
            command: of the service, in this release or another.
            **environment: variables that replace its own.
        """
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CHECKOUT),
            "DATA_DIR": str(self.directory / "data"),
            "DRAIN_DELAY": "0",  # a test has drained it before
            "LISTEN_ADDRESS": self.address,
            "LISTEN_PORT": str(self.port),
            **self.environment,
            **environment,
        }
        with (
            (self.directory / "stdout").open("ab") as stdout,
            (self.directory / "stderr").open("ab") as stderr,
        ):
            self._process = forks.start(
                command,
                cwd=self.directory,
                env=variables,
                namespace=self.namespace,
                stdout=stdout,
                stderr=stderr,
            )

    def wait_until_healthy(self) -> None:
        """Wait until it serves all images, and has reached the database."""
        wait_for(self._is_healthy)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it with SIGTERM; it must exit with status 0."""
        self.service.process.terminate()
        assert self.wait() == 0, self._end_of_output

    def wait(self) -> int:
        """Wait until it has ended; return its exit status."""
        return self.service.process.wait(_STOP_SECONDS)

    def _is_healthy(self) -> bool:
        assert self.service.process.poll() is None, self._end_of_output
        try:
            return self.service.get("/health").status == 200
        except OSError:
            return False
