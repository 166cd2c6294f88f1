"""The assisted-service of a fleet: it signs each answer anew, and may be out."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from image_service.tools.loadtest.fleet.splice import make_config

if TYPE_CHECKING:
    from collections.abc import Iterator

_INFRA_ENV = 5  # in a path, split at its slashes: /api/assisted-install/v2/infra-envs/ID


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as http.server has it
        """Print what went wrong, but not that a service has closed its connections: it restarts."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FleetAssistedService:
    """The answers about all infra-envs, in a thread for each connection.

    Args:
        version: of OpenShift, that all infra-envs have.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_out = False
        """True while it answers 503."""
        self.calls = 0
        self._configs: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answers(self, infra_env: str) -> int:
        """Return how many configs were sent for an infra-env; the first has the number 1."""
        return self._configs[infra_env]

    def answer(self, path: str) -> bytes | None:
        """Return the content of a response; None: 503."""
        infra_env = path.split("/")[_INFRA_ENV]
        with self._lock:
            self.calls += 1
            if self.is_out:
                return None
            if not path.endswith("/downloads/files"):
                fields = {"id": infra_env, "openshift_version": self.version, "cpu_architecture": "x86_64"}
                return json.dumps(fields).encode()
            self._configs[infra_env] += 1
            return make_config(infra_env, self._configs[infra_env])

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
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()
