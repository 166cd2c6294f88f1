"""The services of a fleet, as processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.tools.loadtest.fleet.splice import SplicedBase

START_SECONDS = 120.0
MOUNT_WINDOW_SECONDS = 600
"""Longer than a restart takes on a busy machine, after which a mount would get the newest version."""
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1


class FleetServiceError(Exception):
    """A service does not start, or not change its base image."""


class FleetService:
    """One service; it is stopped at the end of a ``with`` block. All calls block.

    Args:
        directory: for its data and its log.
        upstream: host and port of assisted-service.
        version: of OpenShift, that its base image has.
        connections: that it must accept.
    """

    def __init__(self, directory: Path, upstream: str, version: str, connections: int) -> None:
        self.port = _free_port()
        self._directory = directory
        self._version = version
        self._images = directory / "images.json"
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ},
            "ASSISTED_SERVICE_HOST": upstream,
            "ASSISTED_SERVICE_SCHEME": "http",
            "DATA_DIR": str(directory / "data"),
            "DRAIN_DELAY": "0",
            "LISTEN_ADDRESS": "127.0.0.1",
            "LISTEN_PORT": str(self.port),
            "MAX_CONNECTIONS": str(connections),
            "MOUNT_WINDOW": str(MOUNT_WINDOW_SECONDS),
            "OS_IMAGES": f"@{self._images}",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def path(self, infra_env: str) -> str:
        """Return the path of an infra-env's image."""
        return f"/byid/{infra_env}/{self._version}/x86_64/full.iso"

    def configure(self, base: SplicedBase) -> None:
        """Write the configuration with a base image, whose file's name is its build."""
        entry = {
            "openshift_version": self._version,
            "version": base.path.stem,
            "cpu_architecture": "x86_64",
            "url": base.path.absolute().as_uri(),
        }
        self._images.write_text(json.dumps([entry]))

    def start(self, infra_env: str) -> None:
        """Start, and wait until it serves the image of an infra-env."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "image_service.cli", "serve"],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self._await_other_tag(infra_env, "")

    def restart(self, infra_env: str) -> None:
        """Stop as an operator does, and start again with the same data."""
        self._stop()
        self.start(infra_env)

    def change_base(self, base: SplicedBase, infra_env: str) -> None:
        """Configure another base image, and wait until the newest image of an infra-env has it."""
        tag = self._find_tag(infra_env)
        self.configure(base)
        assert self._process is not None  # noqa: S101 - it was started
        self._process.send_signal(signal.SIGHUP)
        self._await_other_tag(infra_env, tag)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_other_tag(self, infra_env: str, tag: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._find_tag(infra_env) in {"", tag}:
            has_ended = self._process is not None and self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                end = (self._directory / "log").read_bytes()[-1000:].decode(errors="replace")
                raise FleetServiceError(f"a service does not serve its image; its log ends:\n{end}")
            time.sleep(_POLL_SECONDS)

    def _find_tag(self, infra_env: str) -> str:
        """Return the entity tag of the newest image of an infra-env; empty: it is not served now."""
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection,
        ):
            connection.request("HEAD", self.path(infra_env))
            response = connection.getresponse()
            if response.status == HTTPStatus.OK:
                return response.getheader("ETag", "")
        return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
