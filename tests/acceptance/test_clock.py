"""A wall clock that is wrong at first, or set while the service runs, prolongs nothing and stops nothing."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.acceptance.clocks import WallClock
from tests.acceptance.readers import reading
from tests.acceptance.tenants import (
    RANGE,
    SERVED,
    Site,
    Tenants,
    bearer,
    iso_of,
    serving,
    serving_tenants,
    wait_for,
)
from tests.acceptance.upstream import running
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.readers import Reader
    from tests.acceptance.service import Certificate

# test_wall_clock and test_reactor try the same with clocks of their own.
pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

WORKERS = pytest.mark.parametrize("workers", ONE_OR_TWO)
TTL_SECONDS = 1
HEAD_SECONDS = 3
"""Of an incomplete head, and of an idle connection."""
PATIENCE_SECONDS = 60
AHEAD_SECONDS = 2 * 3600
STEPS_SECONDS = (-70 * 60, 10 * 60)
INCOMPLETE = b"GET /live HTTP/1.1\r\nHost:"
IDLE = b"GET /live HTTP/1.1\r\nHost: idle\r\n\r\n"
NO_FIELDS: dict[str, str] = {}
ENVIRONMENT = {
    "SNAPSHOT_TTL": str(TTL_SECONDS),
    "HEAD_TIMEOUT": str(HEAD_SECONDS),
    "IDLE_TIMEOUT": str(HEAD_SECONDS),
}


@WORKERS
def test_credential_used_while_the_clock_was_ahead_is_validated_after_a_restart(
    certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    environment = {**ENVIRONMENT, "WORKERS": str(workers)}
    clock = WallClock(tmp_path / "clock")
    clock.set(AHEAD_SECONDS)
    with running(certificate) as upstream:
        tenants = Tenants(upstream)
        revoked, valid = tenants.register("revoked"), tenants.register("valid")
        with serving(tmp_path, tenants, {**environment, **clock.environment}) as site:
            check_offset(site, AHEAD_SECONDS)
            known = site.mount("valid", valid)
            site.mount("revoked", revoked)
        tenants.revoked.add("revoked")
        with serving(tmp_path, tenants, environment) as site:
            check_offset(site, 0)
            check_refused_after_ttl(site, revoked)
            asked = upstream.count(valid)
            assert site.mount("valid", valid).headers["ETag"] == known.headers["ETag"]
            assert upstream.count(valid) > asked


@WORKERS
def test_step_of_the_clock_prolongs_no_credential_and_stops_no_deadline(
    certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    clock = WallClock(tmp_path / "clock")
    clock.set(0)
    environment = {**ENVIRONMENT, **clock.environment, "WORKERS": str(workers)}
    with serving_tenants(tmp_path, certificate, environment) as site:
        download = site.tenants.register("download")
        with ExitStack() as stack:
            whole = start_download(stack, site, download).read_to_the_end()
            slow = start_download(stack, site, download)
            for offset_seconds in STEPS_SECONDS:
                check_step(site, clock, offset_seconds)
                slow.read(4096)
            assert slow.read_to_the_end() == whole


def start_download(stack: ExitStack, site: Site, infra_env_id: str) -> Reader:
    """Read the head of a download; on a busy machine, again until it comes in time."""
    readers: list[Reader] = []

    def is_served() -> bool:
        field = f"Authorization: {bearer('download')['Authorization']}"
        readers.append(stack.enter_context(reading(site.service.url + iso_of(infra_env_id), field)))
        readers[-1].read_head()
        return readers[-1].status == HTTPStatus.OK

    wait_for(is_served)
    return readers[-1]


def check_step(site: Site, clock: WallClock, offset_seconds: int) -> None:
    """Set the clock, and check what ends and what goes on."""
    name = f"revoked at {offset_seconds}"
    revoked, mounted = site.tenants.register(name), site.tenants.register("mounted")
    before = site.mount("mounted", mounted)
    site.mount(name, revoked)
    netloc = urlsplit(site.service.url).netloc
    with closed_on_time(netloc, INCOMPLETE), closed_on_time(netloc, IDLE):
        clock.set(offset_seconds)
        check_offset(site, offset_seconds)
        site.tenants.revoked.add(name)
        check_refused_after_ttl(site, revoked, name)
        after = site.mount("mounted", mounted)
        assert (after.headers["ETag"], after.body) == (before.headers["ETag"], before.body)


@contextmanager
def closed_on_time(netloc: str, request: bytes) -> Iterator[None]:
    """Send a request, and check at the end of the block that the service closes the connection."""
    host, port = netloc.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        connection.sendall(request)
        yield
        while connection.recv(65536):
            pass


def check_offset(site: Site, offset_seconds: int) -> None:
    """Check that the service has the clock that the test needs."""
    date = parsedate_to_datetime(site.service.get("/live").headers["Date"]).timestamp()
    assert abs(date - time.time() - offset_seconds) < 60


def check_refused_after_ttl(site: Site, infra_env_id: str, owner: str = "revoked") -> None:
    """Check that soon after a TTL no kind of request is served any more, by any worker."""
    time.sleep(TTL_SECONDS)
    wait_for(lambda: not any(served(site, owner, infra_env_id) for _ in range(5)), PATIENCE_SECONDS)


def served(site: Site, owner: str, infra_env_id: str) -> bool:
    ways = (("GET", RANGE), ("GET", NO_FIELDS), ("HEAD", NO_FIELDS))
    return any(site.request(owner, infra_env_id, method, fields).status in SERVED for method, fields in ways)
