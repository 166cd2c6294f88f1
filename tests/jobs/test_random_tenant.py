"""Four tenants send valid and invalid requests as fast as they can; a fifth gets its images all the same."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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
    from collections.abc import Sequence
    from pathlib import Path

    from tests.jobs.random_client import RandomClient

pytestmark = pytest.mark.acceptance


ANSWERS = (("POST", 201), ("PUT", 200), ("POST", 507))
"""That the noisy tenants get: orders and uploads are accepted, until there is no room."""


@pytest.mark.parametrize(
    ("seconds", "clients_of_tenant"), [(0, 1), soaked(600, 3)], ids=["all answers", "minutes"]
)
def test_noisy_tenants_neither_harm_a_quiet_one_nor_exceed_memory_and_budgets(
    seconds: float, clients_of_tenant: int, tmp_path: Path
) -> None:
    with running_with_tenants(tmp_path, FRESH_JOBS, **VARIABLES) as role:
        quiet, stored = QuietTenant(role), StoredBytes(role.data_dir)
        clients = noisy_clients(role, clients_of_tenant)
        quiet.make_image()  # for the first one, a base disk is unpacked, which takes 64 MiB more
        ended = Event()
        with ThreadPoolExecutor(len(clients) + 1) as threads:
            noise = [threads.submit(client.run, ended) for client in clients]
            noise.append(threads.submit(stored.sample_until, ended))
            deadline = time.monotonic() + seconds
            try:
                while time.monotonic() < deadline or not all(map(total(clients).get, ANSWERS)):
                    quiet.make_image()
            finally:
                ended.set()
        for each in noise:
            each.result()
        memory = peak_bytes(role)
        answers = total(clients)
        print(  # noqa: T201 - figures for people
            f"{quiet.images} images, slowest request {max(quiet.seconds):.2f} s; {memory};"
            f" {dict(stored.most)}; {dict(sorted(answers.items()))}"
        )
        assert [fault for client in clients for fault in client.faults] == []
        assert memory["role"] < MOST_ROLE_BYTES
        assert len(memory) == 2
        assert sum(memory.values()) < MOST_BYTES_WITH_ENGINE
        assert max(stored.most.values()) <= MOST_BYTES
        assert "Traceback" not in role.log


def total(clients: Sequence[RandomClient]) -> Counter[tuple[str, int]]:
    """Return how often all clients together got which status for which method."""
    return sum((client.answers.copy() for client in clients), Counter())
