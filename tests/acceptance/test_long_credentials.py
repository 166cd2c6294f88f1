"""Credentials of more than 8,192 bytes are refused, and cost no memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.tenants import VERSION, Site, bearer, iso_of, serving_tenants
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

MOST_BYTES = 8_192
LONG_BYTES = 24_000
CREDENTIALS = 2_000
"""Kept, they are 46 MiB."""
GROWTH_BYTES = 24 * 1024 * 1024
ROUNDS = 3
CLIENTS = 8


@pytest.fixture(params=ONE_OR_TWO)
def site(request: pytest.FixtureRequest, certificate: Certificate, tmp_path: Path) -> Iterator[Site]:
    with serving_tenants(tmp_path, certificate, {"WORKERS": str(request.param)}) as served:
        yield served


def in_url(infra_env_id: str, api_key: str) -> str:
    return f"/images/{infra_env_id}?version={VERSION}&type=full-iso&api_key={api_key}"


def test_credential_of_more_than_8192_bytes_is_431_and_in_a_url_414(site: Site) -> None:
    infra_env_id = site.tenants.register(None)
    longest = MOST_BYTES - len(bearer("")["Authorization"])
    statuses = [site.service.get(iso_of(infra_env_id), bearer("c" * (longest + n))).status for n in (0, 1)]
    assert statuses == [200, 431]
    # The limit of the whole target is the same.
    lengths = (MOST_BYTES - len(in_url(infra_env_id, "")), MOST_BYTES)
    statuses = [site.service.get(in_url(infra_env_id, "c" * length)).status for length in lengths]
    assert statuses == [200, 414]
    assert site.tenants.upstream.count(infra_env_id) == 2


@pytest.mark.soak
def test_long_credentials_cost_no_memory(site: Site) -> None:
    infra_env_id = site.tenants.register(None)
    pids = [site.service.process.pid, *children(site.service.process.pid)]

    def ask(number: int) -> int:
        return site.service.get(iso_of(infra_env_id), bearer(f"{number:0{LONG_BYTES}}"), "HEAD").status

    statuses: set[int] = set()
    growths: list[int] = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        statuses.update(pool.map(ask, range(CREDENTIALS // 10)))
        for round_ in range(1, ROUNDS + 1):
            before = sum(map(resident_bytes, pids))
            statuses.update(pool.map(ask, range(round_ * CREDENTIALS, (round_ + 1) * CREDENTIALS)))
            growths.append(sum(map(resident_bytes, pids)) - before)
            if growths[-1] < GROWTH_BYTES:
                break
    # Kept credentials grow in each round; the heap of a worker that warms up does not.
    assert min(growths) < GROWTH_BYTES
    assert statuses == {431}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
