"""The first request of an infra-env: what the service adds to the time of assisted-service."""

from __future__ import annotations

import http.client
import socket
import sys
import time
import uuid
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.ports import free_port
from bench.results import Target
from bench.servers import SERVICE, image_path, start
from bench.study import Figure
from image_service.common.http.tls import client_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bench.stage import Stage

CONFIG_KIB = 256
_API = "/api/assisted-install/v2/infra-envs"
_RANGE = {"Range": "bytes=0-65535"}
_SETTLING_REQUESTS = 3
"""Not counted: a new service imports modules at its first requests."""


def study_first_requests(stage: Stage, *, infra_envs: int) -> Iterator[Figure]:
    """Request images of new infra-envs from this service and each peer checkout in turn."""
    seconds: dict[str, list[float]] = {}
    cpu_seconds: dict[str, list[float]] = {}
    upstream_seconds: list[float] = []
    with ExitStack() as stack:
        upstream = start_upstream(stack, stage, CONFIG_KIB)
        services = stage.start_services(stack, upstream_environment(upstream), "first-requests")
        clients = {each.name: stack.enter_context(closing(connect(each.urls["http"]))) for each in services}
        upstream_client = stack.enter_context(closing(connect(upstream)))
        for service in services:
            for _ in range(_SETTLING_REQUESTS):
                request_new_infra_env(clients[service.name], stage.image)
        for number in range(infra_envs):
            infra_env = f"{_API}/{uuid.uuid4()}"  # the service sends both requests at the same time
            paths = (infra_env, f"{infra_env}/downloads/files")
            upstream_seconds.append(max(_timed(upstream_client, path) for path in paths))
            for service in services if number % 2 else reversed(services):
                cpu_before, started_at = service.cpu_seconds() or 0.0, time.perf_counter()
                request_new_infra_env(clients[service.name], stage.image)
                seconds.setdefault(service.name, []).append(time.perf_counter() - started_at)
                cpu = (service.cpu_seconds() or 0.0) - cpu_before
                cpu_seconds.setdefault(service.name, []).append(cpu)
    for name, durations in seconds.items():
        target = Target(at_most=15) if name == SERVICE else Target()
        yield Figure(name, "CPU time of the server for it", "ms", _milliseconds(cpu_seconds[name]), target)
        beyond = [own - other for own, other in zip(durations, upstream_seconds, strict=True)]
        yield Figure(name, "time of it beyond upstream's own", "ms", _milliseconds(beyond))
    yield Figure(SERVICE, "the longer of upstream's two responses", "ms", _milliseconds(upstream_seconds))
    for name in [name for name in seconds if SERVICE in seconds and name != SERVICE]:
        for what, values in (("time", seconds), ("CPU time", cpu_seconds)):
            ratios = [own / other for own, other in zip(values[SERVICE], values[name], strict=True) if other]
            yield Figure(SERVICE, f"{what} of it ÷ {name}", "", ratios, Target(at_most=1.05))


def start_upstream(stack: ExitStack, stage: Stage, config_kib: int, files: int = 1) -> str:
    """Start an assisted-service that knows every infra-env; return its address.

    Args:
        stack: stops it.
        stage: of the run.
        config_kib: size of each Ignition config.
        files: that it has.
    """
    port = free_port()

    def probe() -> None:
        with socket.create_connection(("127.0.0.1", port)):
            pass

    command = [
        sys.executable,
        "-m",
        "bench.upstream",
        str(port),
        stage.image.stem,
        str(config_kib),
        str(files),
    ]
    start(stack, command, stage.directory / "upstream.log", probe)
    return f"http://127.0.0.1:{port}"


def upstream_environment(upstream: str) -> Mapping[str, str]:
    """Return the variables of a service that uses this upstream."""
    return {"ASSISTED_SERVICE_SCHEME": "http", "ASSISTED_SERVICE_HOST": urlsplit(upstream).netloc}


def connect(url: str) -> http.client.HTTPConnection:
    """Return a client with one kept-alive connection; it trusts any certificate."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, timeout=60, context=client_context(insecure=True))
    return http.client.HTTPConnection(parts.netloc, timeout=60)


def send_get(client: http.client.HTTPConnection, target: str, headers: Mapping[str, str]) -> None:
    """Send a GET for a path or URL, and read the response; raises ConnectionError unless it is 2xx."""
    client.request("GET", urlsplit(target).path, headers=dict(headers))
    response = client.getresponse()
    body = response.read()
    if response.status // 100 != 2:  # noqa: PLR2004 - the class of success
        raise ConnectionError(f"{target}: {response.status} {body[:200]!r}")


def request_new_infra_env(client: http.client.HTTPConnection, image: Path) -> None:
    """Request a range of the image of an infra-env that was never requested before."""
    send_get(client, f"/{image_path(image, str(uuid.uuid4()))}", _RANGE)


def _timed(client: http.client.HTTPConnection, path: str) -> float:
    started_at = time.perf_counter()
    send_get(client, path, {})
    return time.perf_counter() - started_at


def _milliseconds(seconds: list[float]) -> list[float]:
    return [each * 1000 for each in seconds]
