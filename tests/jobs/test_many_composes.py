"""Composes that two tenants queue at once: all end, quickly answered, in bounded memory."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.service import fetch
from tests.jobs.running_role import API, FRESH_JOBS, RunningRole, wait_until
from tests.jobs.tenant_clients import ask, running_with_tenants, start, token
from tests.jobs.worker.workers import real_toolkit, running_worker
from tests.s3_server import BUCKET, REGION, running_s3_server

if TYPE_CHECKING:
    from tests.acceptance.service import Answer

pytestmark = pytest.mark.acceptance

TENANTS = ("1", "2")
TARGET = {"type": "aws.s3", "upload_options": {"region": REGION}}
POLLS = {"/jobs", "/jobs/{token}/artifacts/{name}"}
MOST_BYTES = 512 * 2**20


def queue(role: RunningRole, tenant: str, number: int) -> None:
    """Start live ISOs that are uploaded, and small disks, in turn."""
    for count in range(number):
        if count % 2:
            start(role, tenant, "minimal-raw")
        else:
            start(role, tenant, "live-installer", TARGET)


def count_of(role: RunningRole, tenant: str, state: str) -> int:
    answer: Answer = ask(role, f"{API}/composes/?size=1&status={state}", tenant)
    return int(answer.json()["total"])


def share_within(role: RunningRole, bound: str) -> float:
    """Return the share of requests but polls that took no longer than `bound` seconds."""
    page = fetch(f"{role.admin_url}/metrics").body.decode()
    samples = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if re.search("http_duration_seconds_(bucket|count)", sample.name)
        and sample.labels["path"] not in POLLS
    ]
    quick = sum(sample.value for sample in samples if sample.labels.get("le") == bound)
    return quick / sum(sample.value for sample in samples if "le" not in sample.labels)


def resident_bytes(role: RunningRole) -> dict[str, int]:
    """Return the memory of the role and of its engine, by their programs."""
    processes = [Path(f"/proc/{role.process.pid}")]
    processes += [path for path in Path("/proc").glob("[0-9]*") if _parent(path) == role.process.pid]
    found = {}
    for process in processes:
        text = (process / "status").read_text()
        found[re.findall(r"Name:\t(.*)", text)[0]] = int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) * 1024
    return found


def _parent(process: Path) -> int:
    try:
        return int(re.findall(r"PPid:\t(\d+)", (process / "status").read_text())[0])
    except OSError:  # it has ended
        return 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "workers"),
    [(1, 1), pytest.param(100, 2, marks=pytest.mark.soak)],
    ids=["one-each", "hundred-each"],
)
def test_composes_of_two_tenants_end(number: int, workers: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        s3 = stack.enter_context(running_s3_server(tmp_path / "s3"))
        variables = {**s3.environment, "UPLOAD_S3_URL": f"s3://{BUCKET}/made", "JOBS_WORKER_SLOTS": "0"}
        role = stack.enter_context(running_with_tenants(tmp_path, FRESH_JOBS, **variables))
        with ThreadPoolExecutor(len(TENANTS)) as pool:
            list(pool.map(lambda tenant: queue(role, tenant, number), TENANTS))
        toolkit = real_toolkit(tmp_path)
        for tenant in TENANTS:
            for worker in range(workers):
                directory = tmp_path / f"worker-{tenant}-{worker}"
                directory.mkdir()
                running = running_worker(
                    role.url,
                    directory,
                    toolkit,
                    "--heartbeat=5",
                    environment=s3.environment,
                    token=token(tenant),
                )
                stack.enter_context(running)
        for tenant in TENANTS:
            wait_until(
                lambda tenant=tenant: count_of(role, tenant, "pending") == 0,  # type: ignore[misc]
                lambda: role.log,
                seconds=3600,
            )
            assert count_of(role, tenant, "success") == number
        memory = resident_bytes(role)
        share = share_within(role, "0.2")
        print(f"{memory} bytes; {share:.1%} of requests within 0.2 s")  # noqa: T201 - figures for people
        assert sum(path.is_file() for path in s3.directory.rglob("*")) == 2 * ((number + 1) // 2)
        assert max(memory.values()) < MOST_BYTES
        assert len(memory) == 2
