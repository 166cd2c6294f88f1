"""A flood of unknown infra-envs without credentials: tenants keep what is theirs, and no more.

Each answer of assisted-service takes half a second, so that the flood's 180 connections ask faster than 32
calls at a time can answer.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.acceptance.latency_client import Client
from tests.acceptance.standstills import Standstills, timed
from tests.acceptance.tenants import RANGE, SERVED, Site, bearer, iso_of, serving_tenants
from tests.acceptance.upstream import Reply
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.acceptance.latency_client import TimedResponse
    from tests.acceptance.service import Certificate
    from tests.acceptance.tenants import Tenants

pytestmark = pytest.mark.acceptance

CONNECTIONS = 180
PAUSE_SECONDS = 0.5
NEW_AT_ONCE = 4
POLL_SECONDS = 0.1
CALL_SECONDS = 0.5
CALLS = 32
TTL_SECONDS = 2
REVALIDATION_SECONDS = 2
"""What a revalidation may take beyond the TTL, at most: the wait for its call slot."""
FLOOD_SECONDS = 6
ENVIRONMENT = {
    "SNAPSHOT_TTL": str(TTL_SECONDS),
    "SNAPSHOT_GRACE": "25",
    "UPSTREAM_TIMEOUT": "5",
    "UPSTREAM_CONCURRENCY": str(CALLS),
}


@contextmanager
def flood(netloc: str) -> Iterator[None]:
    """Ask for unknown infra-envs on kept-alive connections until the block ends."""
    ended = Event()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for _ in range(CONNECTIONS):
            pool.submit(ask_for_unknown, netloc, ended)
        try:
            yield
        finally:
            ended.set()


def ask_for_unknown(netloc: str, ended: Event) -> None:
    connection = HTTPConnection(netloc, timeout=60)
    while not ended.wait(PAUSE_SECONDS):
        try:
            connection.request("HEAD", iso_of(str(uuid.uuid4())))
            connection.getresponse().read()
        except (OSError, HTTPException):
            connection.close()
    connection.close()


@contextmanager
def asking_for_new_images(client: Client, tenants: Tenants) -> Iterator[list[TimedResponse]]:
    """Ask for new images, a few at a time, until the block ends; then the responses are in the list."""
    responses: list[TimedResponse] = []
    ended = Event()

    def ask() -> None:
        while not ended.is_set():
            responses.append(client.request(iso_of(tenants.register("new")), "GET", bearer("new")))

    with ThreadPoolExecutor(NEW_AT_ONCE) as pool:
        asking = [pool.submit(ask) for _ in range(NEW_AT_ONCE)]
        try:
            yield responses
        finally:
            ended.set()
    for each in asking:
        each.result()


def check_goes_on(site: Site, known: str) -> None:
    """Check that a mount is served."""
    answer, _ = timed(lambda: site.request("known", known))
    assert answer.status == 206


def check_new_images(responses: Sequence[TimedResponse]) -> None:
    """Check that at least a third is served, and that each is answered or refused in time."""
    statuses = [response.status for response in responses]
    assert set(statuses) <= {200, 503, 504}
    assert statuses.count(200) >= len(statuses) / 3
    for response in responses:
        response.check_time()


@pytest.fixture(params=ONE_OR_TWO)
def site(request: pytest.FixtureRequest, certificate: Certificate, tmp_path: Path) -> Iterator[Site]:
    environment = {**ENVIRONMENT, "WORKERS": str(request.param)}
    with serving_tenants(tmp_path, certificate, environment) as served:
        served.tenants.after_seconds = CALL_SECONDS
        served.tenants.upstream.unknown = Reply(status=404, after_seconds=CALL_SECONDS)
        yield served


@pytest.mark.soak
def test_flood_without_credentials_prolongs_nothing_and_leaves_tenants_their_share(site: Site) -> None:
    tenants, service = site.tenants, site.service
    revoked, known = tenants.register("revoked"), tenants.register("known")
    site.mount("revoked", revoked)
    site.mount("known", known)
    netloc = urlsplit(service.url).netloc
    with (
        Standstills().measured() as machine,
        Client(netloc).measuring() as client,
        flood(netloc),
        asking_for_new_images(client, tenants) as new,
    ):
        begun = time.monotonic()
        while time.monotonic() < begun + TTL_SECONDS:
            check_goes_on(site, known)
            time.sleep(POLL_SECONDS)
        tenants.revoked.add("revoked")
        revoked_at = time.monotonic()
        served_until = revoked_at
        while (now := time.monotonic()) < revoked_at + FLOOD_SECONDS:
            for method, fields in (("GET", RANGE), ("GET", {}), ("HEAD", {})):
                if site.request("revoked", revoked, method, fields).status in SERVED:
                    served_until = now
            check_goes_on(site, known)
        stood_still = machine.seconds_since(revoked_at)
    assert served_until < revoked_at + TTL_SECONDS + REVALIDATION_SECONDS + stood_still
    check_new_images(new)
    assert tenants.upstream.most_at_once <= CALLS
    assert service.total('upstream_calls_total{.*outcome="timeout"}') == 0
    assert service.total('refusals_total{reason="upstream-queue"}') > 0
    assert service.total("snapshot_grace_requests_total") == 0
