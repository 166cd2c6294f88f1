"""The administrative page of the jobs role in a browser, with hostile texts in what it shows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa

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


def run_on_groups(browser: Browser, expression: str) -> list[str]:
    """Return the value of an expression for each compose, which is ``group`` in it."""
    groups = "[...document.querySelectorAll('#composes .group')]"
    return browser.run(f"return {groups}.map((group) => {expression})")  # type: ignore[return-value]  # texts


def test_hostile_texts_neither_run_nor_break_the_page(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with (
        running_role(tmp_path, JOBS_WORKER_SLOTS="0", JOBS_RETENTION="1000000000") as role,
        running_browser(tmp_path / "profile") as browser,
    ):
        browser.open(f"{role.admin_url}/")
        browser.wait_for(lambda: len(browser.texts("#composes .group")) == len(HOSTILE))
        reasons = run_on_groups(browser, "group.querySelector('.advice').textContent")
        assert sorted(reasons) == sorted(HOSTILE)
        elements = "[...group.querySelectorAll('*')].map((each) => each.localName).join(' ')"
        assert len(set(run_on_groups(browser, elements))) == 1, "no text has become an element"
        browser.check_looks()
        assert browser.run("return document.title") == "image-service jobs"
        assert browser.texts("h1") == ["image-service jobs"]
        loaded: Any = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert [url for url in loaded if not url.startswith(role.admin_url)] == []
        assert browser.errors() == []
