from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from datetime import UTC, datetime

import attrs

from image_service.app.jobs.status_page import _FIELDS, render_page
from image_service.jobs.model import (
    ComposeState,
    ComposeSummary,
    ImageType,
    JobError,
    JobProgress,
    JobState,
    JobSummary,
    JobType,
)

AT = datetime(2026, 3, 4, 5, 6, 7, 89, UTC)
COMPOSE = ComposeSummary(
    id="compose-1",
    tenant="org-42",
    distribution="rhcos-4.17",
    architecture="x86_64",
    image_type=ImageType.VSPHERE,
    state=ComposeState.BUILDING,
    created_at=AT,
)
JOB = JobSummary(
    id="job-1", compose_id="compose-1", step="customize", type=JobType.CUSTOMIZE, state=JobState.RUNNING
)


def cells(page: str, row: str) -> list[str]:
    """Return the texts of the row that begins with a cell."""
    (line,) = [line for line in page.splitlines() if f"<td>{row}</td>" in line]
    return re.findall(r"<td>(.*?)</td>", line)


def test_compose_has_a_row_and_each_job_one_below() -> None:
    job = attrs.evolve(JOB, attempt=2, progress=JobProgress(3, 4, "write"), worker="w-1", started_at=AT)
    page = render_page([(COMPOSE, [job])], 1)
    begun = "2026-03-04 05:06:07+00:00"
    assert cells(page, "compose-1") == [
        *("compose-1", "org-42", "rhcos-4.17 x86_64 vsphere", "building", "", "", begun, "", "")
    ]
    assert cells(page, "job-1") == [
        *("job-1", "", "customize, attempt 2", "running", "write 3/4", "w-1", begun, "", "")
    ]
    assert page.index("compose-1") < page.index("job-1")


def test_default_tenant_is_named() -> None:
    assert cells(render_page([(attrs.evolve(COMPOSE, tenant=""), [])], 1), "compose-1")[1] == "default"


def test_text_of_clients_and_workers_is_escaped() -> None:
    script = "<script>alert(1)</script>"
    failed = attrs.evolve(COMPOSE, tenant=script, error=JobError(10, script))
    page = render_page([(failed, [attrs.evolve(JOB, worker=script, error=JobError(10, script))])], 1)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 4


def test_page_may_load_nothing_and_has_its_style() -> None:
    page = render_page([(COMPOSE, [JOB])], 1)
    fields = dict(_FIELDS)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = fields["Content-Security-Policy"].split("; ")
    assert f"style-src 'sha256-{digest}'" in policy
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert not {"style=", "<script", "src="} & set(re.findall(r"style=|<script|src=", page))
    assert (fields["X-Content-Type-Options"], fields["Referrer-Policy"]) == ("nosniff", "no-referrer")
