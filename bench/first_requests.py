"""The first request of an infra-env: what the service adds to the time that its upstream takes."""

from __future__ import annotations

import http.client
import socket
import sys
import time
import uuid
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.results import Target
from bench.servers import SERVICE, image_path, start
from bench.study import Figure
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bench.servers import Server
    from bench.stage import Stage

CONFIG_KIB = 256
_API = "/api/assisted-install/v2/infra-envs"
_RANGE = {"Range": "bytes=0-65535"}


def study_first_requests(stage: Stage) -> Iterator[Figure]:
    """Ask for images of infra-envs that nobody has asked for, and in between ask upstream itself."""
    own_ms, upstream_ms, cpu_ms = [], [], []
    with ExitStack() as stack:
        service, upstream = start_with_upstream(stack, stage, CONFIG_KIB)
        client = stack.enter_context(closing(connect(service.urls["http"])))
        asker = stack.enter_context(closing(connect(upstream)))
        _ask(client, stage.image)  # both sides have imported what they need
        for _ in range(stage.effort.infra_envs):
            upstream_ms.append(_upstream_ms(asker))
            before, began = service.cpu_seconds() or 0.0, time.perf_counter()
            _ask(client, stage.image)
            own_ms.append((time.perf_counter() - began) * 1000)
            cpu_ms.append(((service.cpu_seconds() or 0.0) - before) * 1000)
    beyond = [own - other for own, other in zip(own_ms, upstream_ms, strict=True)]
    yield Figure(SERVICE, "CPU time of the server for it", "ms", cpu_ms, Target(at_most=15))
    yield Figure(SERVICE, "time of it beyond upstream's own", "ms", beyond)
    yield Figure("upstream", "the longer of its two answers", "ms", upstream_ms)


def start_with_upstream(
    stack: ExitStack, stage: Stage, config_kib: int, more: Mapping[str, str] | None = None
) -> tuple[Server, str]:
    """Start an upstream that knows every infra-env, and a service that asks it.

    Args:
        stack: ends both.
        stage: where.
        config_kib: size of each Ignition config.
        more: variables for the service.

    Returns:
        the service, and the URL of its upstream.
    """
    port = free_port()
    command = [sys.executable, "-m", "bench.upstream", str(port), stage.image.stem, str(config_kib)]
    start(stack, command, stage.directory / "upstream.log", lambda: _reach(port))
    environment = {
        "ASSISTED_SERVICE_SCHEME": "http",
        "ASSISTED_SERVICE_HOST": f"127.0.0.1:{port}",
        **(more or {}),
    }
    directory = stage.directory / "upstream"
    return stage.start_service(stack, environment, directory), f"http://127.0.0.1:{port}"


def connect(url: str) -> http.client.HTTPConnection:
    """Open a connection that is kept alive."""
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)


def ask(client: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> None:
    """Send a GET, and read the answer to its end.

    Raises:
        ConnectionError: it is none of 2xx.
    """
    client.request("GET", path, headers=headers)
    answer = client.getresponse()
    body = answer.read()
    if answer.status // 100 != 2:  # noqa: PLR2004 - the class of success
        raise ConnectionError(f"{path}: {answer.status} {body[:200]!r}")


def _reach(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)):
        pass


def _ask(client: http.client.HTTPConnection, image: Path) -> None:
    ask(client, f"/{image_path(image, str(uuid.uuid4()))}", _RANGE)


def _upstream_ms(asker: http.client.HTTPConnection) -> float:
    """The service asks both questions at once, so the longer answer counts."""
    infra_env = f"{_API}/{uuid.uuid4()}"
    return max(_timed_ms(asker, path) for path in (infra_env, f"{infra_env}/downloads/files"))


def _timed_ms(asker: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    ask(asker, path, {})
    return (time.perf_counter() - began) * 1000
