"""The administrative page of the jobs role in a browser, with hostile texts in what it shows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest
import sqlalchemy as sa
from axe_core_python.selenium import Axe

from image_service.jobs.database.tables import COMPOSES, JOBS, open_database
from image_service.jobs.database.values import row_of
from image_service.jobs.model import ComposeState, Job, JobError, JobProgress, JobState, JobType
from tests.acceptance.browser import running_browser
from tests.jobs.database.composing import NOW, make_compose
from tests.jobs.running_role import running_role

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.browser import Browser

pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

HOSTILE = (
    "<script>document.title = 'run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "</td></tr></table><h1>Forged</h1>",
    "<!-- ",
    "--></style><style>body { display: none }</style>",
    "<svg/onload=document.title='run'>",
    "<meta http-equiv=refresh content=0;url=https://attacker.example/>",
    "<base href=https://attacker.example/><a href=javascript:document.title='run'>x</a>",
    "&lt;b&gt; &#x3c;b&#x3e; {{7*7}} ${7*7}",
    "\u202eexe.gpj\u2066\u200b",
    "\x1b[2J\x07\x7f",
    "x" * 4000,
    "̶" * 1000,  # combining characters
)
WIDTHS = (360, 1280)


def fill(data_dir: Path) -> None:
    """Add a failed compose with a failed job for each text, which stands in all that a page shows."""
    data_dir.mkdir()

    def work(connection: sa.Connection) -> None:
        for number, text in enumerate(HOSTILE):
            error = JobError(10, text)
            compose = attrs.evolve(
                make_compose(tenant=text, distribution=text, architecture=text),
                state=ComposeState.FAILURE,
                error=error,
                finished_at=NOW,
            )
            job = Job(
                id=f"job-{number}",
                compose_id=compose.id,
                tenant=text,
                step=text,
                type=JobType.CONVERT,
                architecture=text,
                state=JobState.FAILED,
                attempt=1,
                progress=JobProgress(1, 2, text),
                worker=text,
                error=error,
                finished_at=NOW,
            )
            connection.execute(sa.insert(COMPOSES), row_of(compose))
            connection.execute(sa.insert(JOBS), {**row_of(job), "number": 0})

    with closing(open_database(None, data_dir)) as database:
        database.transact(work)


def check(browser: Browser, width: int) -> None:
    browser.show_as(width)
    assert browser.run("return document.title") == "image-service jobs"
    assert browser.texts("h1") == ["image-service jobs"]
    assert browser.needs_no_scroll_bar()
    allowed = "html, head, meta, title, style, body, main, h1, p, table, tbody, tr, th, td"
    assert (
        browser.run(f"return [...document.querySelectorAll(':not({allowed})')].map((e) => e.outerHTML)") == []
    )
    shown = browser.run(
        "return [...document.querySelectorAll('tr.job td:last-child')].map((e) => e.textContent)"
    )
    assert sorted(shown) == sorted(HOSTILE)  # type: ignore[call-overload]  # a list of texts
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    violations = {each["id"]: each["nodes"] for each in Axe().run(browser.driver)["violations"]}
    violations.pop("meta-refresh", None)  # the page shows how the jobs are now
    assert {rule: [node["html"][:200] for node in nodes] for rule, nodes in violations.items()} == {}


def test_hostile_texts_neither_run_nor_break_the_page(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with (
        running_role(tmp_path, JOBS_WORKER_SLOTS="0", JOBS_RETENTION="1000000000") as role,
        running_browser(tmp_path / "profile") as browser,
    ):
        browser.open(f"{role.admin_url}/")
        for width in WIDTHS:
            check(browser, width)
        assert browser.errors() == []
