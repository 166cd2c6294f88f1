"""The assisted-service of a fleet: it signs each answer anew, and may be out.

It is a process of its own: beside thousands of clients in one process it would answer late.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from image_service.tools.loadtest.fleet.splice import make_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FORK = get_context("fork")
_INFRA_ENV = 5  # in a path, split at its slashes: /api/assisted-install/v2/infra-envs/ID


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as http.server has it
        """Print what went wrong, but not that a service has closed its connections: it restarts."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FleetAssistedService:
    """The answers about infra-envs, in a thread for each connection.

    Args:
        version: of OpenShift, that all infra-envs have.
    """

    def __init__(self, version: str, infra_envs: Sequence[str]) -> None:
        self._version = version
        self._numbers = {infra_env: number for number, infra_env in enumerate(infra_envs)}
        self._lock = threading.Lock()  # of the threads that write
        self._is_out = _FORK.RawValue("b", 0)
        self._calls = _FORK.RawValue("Q", 0)
        self._configs = _FORK.RawArray("Q", len(infra_envs))

    @property
    def is_out(self) -> bool:
        """True while it answers 503."""
        return bool(self._is_out.value)

    @is_out.setter
    def is_out(self, value: bool) -> None:
        self._is_out.value = value

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return int(self._calls.value)

    def answers(self, infra_env: str) -> int:
        """Return how many configs were sent for an infra-env; the first has the number 1."""
        count: int = self._configs[self._numbers[infra_env]]
        return count

    def answer(self, path: str) -> bytes | None:
        """Return the content of a response; None: 503."""
        infra_env = path.split("/")[_INFRA_ENV]
        with self._lock:
            self._calls.value += 1
            if self.is_out:
                return None
            if not path.endswith("/downloads/files"):
                fields = {"id": infra_env, "openshift_version": self._version, "cpu_architecture": "x86_64"}
                return json.dumps(fields).encode()
            self._configs[self._numbers[infra_env]] += 1
            return make_config(infra_env, self.answers(infra_env))

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Listen on loopback; yield host and port."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:  # noqa: N805 - http.server's name; `self` is outside
                content = self.answer(urlsplit(handler.path).path)
                handler.send_response(
                    HTTPStatus.OK if content is not None else HTTPStatus.SERVICE_UNAVAILABLE
                )
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(content or b"")))
                handler.end_headers()
                handler.wfile.write(content or b"")

            def log_message(handler, *_: object) -> None:  # noqa: N805 - as above
                """Print nothing."""

        with _Server(("127.0.0.1", 0), Handler) as server:
            process = _FORK.Process(target=server.serve_forever)
            process.start()
            try:
                yield f"127.0.0.1:{server.server_address[1]}"
            finally:
                process.terminate()
                process.join()
