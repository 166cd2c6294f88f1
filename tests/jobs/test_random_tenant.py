"""Four tenants send valid and invalid requests as fast as they can; a fifth gets its images all the same."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import quantiles
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.jobs.noisy_tenants import (
    MOST_BYTES,
    MOST_BYTES_WITH_ENGINE,
    MOST_ROLE_BYTES,
    VARIABLES,
    QuietTenant,
    StoredBytes,
    noisy_clients,
    peak_bytes,
)
from tests.jobs.running_role import FRESH_JOBS
from tests.jobs.tenant_clients import running_with_tenants
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.jobs.random_client import RandomClient

pytestmark = [pytest.mark.acceptance, pytest.mark.load]


ANSWERS = (("POST", 201), ("PUT", 200), ("POST", 507))
"""That the noisy tenants get: orders and uploads are accepted, until there is no room."""


MOST_TIMES = 10 * 3
"""As long as without noise: ten times what `bench.tenants` shows where the noise has cores of its own."""
MOST_SECONDS = 30
"""Of 99 of 100 requests: ten times as long as there."""


@pytest.mark.parametrize(
    ("seconds", "clients_of_tenant"),
    [(60, 1), soaked(600, 3)],
    ids=["a minute", "ten minutes"],
)
def test_noisy_tenants_neither_harm_a_quiet_one_nor_exceed_memory_and_budgets(
    seconds: float, clients_of_tenant: int, tmp_path: Path
) -> None:
    with running_with_tenants(tmp_path, FRESH_JOBS, **VARIABLES) as role:
        quiet, stored = QuietTenant(role), StoredBytes(role.data_dir)
        clients = noisy_clients(role, clients_of_tenant)
        quiet.make_image()  # for the first one, a base disk is unpacked, which takes 64 MiB more
        alone = seconds_of(quiet.make_image)
        quiet.seconds.clear()
        beside = [alone]
        ended = Event()
        with ThreadPoolExecutor(len(clients) + 1) as threads:
            noise = [threads.submit(client.run, ended) for client in clients]
            noise.append(threads.submit(stored.sample_until, ended))
            deadline = time.monotonic() + seconds
            try:
                while time.monotonic() < deadline or not all(map(total(clients).get, ANSWERS)):
                    beside.append(seconds_of(quiet.make_image))
            finally:
                ended.set()
        for each in noise:
            each.result()
        memory = peak_bytes(role)
        answers = total(clients)
        print(  # noqa: T201 - figures for people
            f"{len(beside)} images, the first, alone, in {alone:.1f} s, others in up to {max(beside):.1f} s;"
            f" slowest request {max(quiet.seconds):.2f} s; {memory};"
            f" {dict(stored.most)}; {dict(sorted(answers.items()))}"
        )
        assert max(beside) < MOST_TIMES * alone
        assert quantiles(quiet.seconds, n=100)[-1] < MOST_SECONDS
        assert [fault for client in clients for fault in client.faults] == []
        assert memory["role"] < MOST_ROLE_BYTES
        assert len(memory) == 2
        assert sum(memory.values()) < MOST_BYTES_WITH_ENGINE
        assert max(stored.most.values()) <= MOST_BYTES
        assert "Traceback" not in role.log


def seconds_of(call: Callable[[], None]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def total(clients: Sequence[RandomClient]) -> Counter[tuple[str, int]]:
    """Return how often all clients together got which status for which method."""
    return sum((client.answers.copy() for client in clients), Counter())
