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

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(
    ("seconds", "clients_of_tenant"),
    [(6, 1), pytest.param(600, 3, marks=pytest.mark.soak)],
    ids=["seconds", "minutes"],
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
                while time.monotonic() < deadline:
                    quiet.make_image()
            finally:
                ended.set()
        for each in noise:
            each.result()
        memory = peak_bytes(role)
        answers = sum((client.answers for client in clients), Counter[tuple[str, int]]())
        print(  # noqa: T201 - figures for people
            f"{quiet.images} images, slowest request {max(quiet.seconds):.2f} s; {memory};"
            f" {dict(stored.most)}; {dict(sorted(answers.items()))}"
        )
        assert [fault for client in clients for fault in client.faults] == []
        assert answers["POST", 201] > 0
        assert answers["PUT", 200] > 0
        assert answers["POST", 507] > 0
        assert memory["role"] < MOST_ROLE_BYTES
        assert len(memory) == 2
        assert sum(memory.values()) < MOST_BYTES_WITH_ENGINE
        assert max(stored.most.values()) <= MOST_BYTES
        assert "Traceback" not in role.log
