"""Idle and silent connections fill all places and the reserve: probes and tenants still get their answers."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, RemoteDisconnected
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.acceptance.standstills import ALLOWED_SECONDS, timed
from tests.acceptance.tenants import RANGE, Site, bearer, iso_of, serving_tenants
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

CONNECTIONS = 300
RESERVE = 64
SILENT_PER_SECOND = 54
PROBES = 12
PROBE_PAUSE_SECONDS = 0.2
PROMISED_SECONDS = 1.0
OWNER = "owner"
_TIMEOUT_SECONDS = 100


@pytest.fixture(params=ONE_OR_TWO)
def site(request: pytest.FixtureRequest, certificate: Certificate, tmp_path: Path) -> Iterator[Site]:
    environment = {"MAX_CONNECTIONS": str(CONNECTIONS), "WORKERS": str(request.param)}
    with serving_tenants(tmp_path, certificate, environment) as served:
        yield served


def connect(site: Site) -> socket.socket:
    host, port = urlsplit(site.service.url).netloc.split(":")
    return socket.create_connection((host, int(port)), _TIMEOUT_SECONDS)


@contextmanager
def idle(site: Site, count: int) -> Iterator[None]:
    """Keep connections open after one request each."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(site)) for _ in range(count)]
        for connection in connections:
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: idle\r\n\r\n")
            assert connection.recv(9) == b"HTTP/1.1 "
        yield


@contextmanager
def silent(site: Site, at_first: int, per_second: int) -> Iterator[None]:
    """Keep making connections that never send a byte."""
    ended = Event()

    def make() -> None:
        with ExitStack() as stack:
            for _ in range(at_first):
                stack.enter_context(connect(site))
            while not ended.wait(1 / per_second):
                stack.enter_context(connect(site))

    making = Thread(target=make)
    making.start()
    try:
        yield
    finally:
        ended.set()
        making.join()


def check_probes(site: Site) -> None:
    """Check that each probe is answered within a second."""
    answers = [probe(site, ("/live", "/health")[n % 2]) for n in range(PROBES)]
    assert [answer for answer in answers if answer[0] != 200] == []
    assert max(seconds for _, seconds in answers) < PROMISED_SECONDS + ALLOWED_SECONDS


def probe(site: Site, path: str) -> tuple[int, float]:
    """Return the status, 0 if there is none, and how long it took."""

    def ask() -> int:
        try:
            return site.service.get(path).status
        except OSError:
            return 0

    time.sleep(PROBE_PAUSE_SECONDS)
    return timed(ask)


@pytest.mark.soak
def test_idle_and_silent_connections_leave_probes_and_tenants_their_places(site: Site) -> None:
    infra_env_id = site.tenants.register(OWNER)
    site.mount(OWNER, infra_env_id)
    image = iso_of(infra_env_id)
    netloc = urlsplit(site.service.url).netloc
    with closing(HTTPConnection(netloc, timeout=_TIMEOUT_SECONDS)) as tenant:
        read_range(tenant, image)
        with idle(site, CONNECTIONS), silent(site, 0, SILENT_PER_SECOND):
            check_probes(site)
            try:
                read_range(tenant, image)
            except (RemoteDisconnected, ConnectionResetError):  # if its worker had no other idle connection
                tenant.close()
                read_range(tenant, image)


def test_silent_connections_in_every_place_leave_probes_theirs(site: Site) -> None:
    with silent(site, CONNECTIONS + RESERVE, SILENT_PER_SECOND):
        check_probes(site)


@pytest.mark.soak
def test_more_idle_connections_than_places_leave_probes_theirs(site: Site) -> None:
    infra_env_id = site.tenants.register(OWNER)
    site.mount(OWNER, infra_env_id)
    with idle(site, CONNECTIONS + RESERVE):
        check_probes(site)
        assert site.request(OWNER, infra_env_id).status == 206


def read_range(tenant: HTTPConnection, path: str) -> None:
    tenant.request("GET", path, headers={**bearer(OWNER), **RANGE})
    response = tenant.getresponse()
    response.read()
    assert response.status == 206
