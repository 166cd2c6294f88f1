"""The status page of the jobs role: composes and their jobs, newest first, as plain HTML."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

import attrs

from image_service.jobs.database.composes import ComposeFilter
from image_service.server.admin.status_page import page_fields
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from image_service.app.jobs.rows import JobsRows
    from image_service.jobs.model import ComposeSummary, JobSummary
    from image_service.server.web_api.messages import ApiRequest
    from image_service.server.web_api.router import Handlers

MAX_COMPOSES = 100

_STYLE = """
body { font: 14px/1.4 sans-serif; margin: 1em }
table { border-collapse: collapse }
th, td { border-bottom: 1px solid #ccc; padding: .2em .6em; text-align: left; vertical-align: top }
td { min-width: 4em; overflow-wrap: anywhere }
tr.job td { color: #555 }
@media (max-width: 60em) {
  table, tbody, tr, td { display: block }
  tr { border-bottom: 1px solid #ccc; padding: .4em 0 }
  tr.job { padding-left: 1em }
  td { border: 0; padding: 0 }
  tr.head, td:empty { display: none }
}
"""
_STYLE_SHA256 = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_FIELDS = page_fields(f"style-src 'sha256-{_STYLE_SHA256}'")
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="10">
<title>image-service jobs</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>image-service jobs</h1>
<p>{summary}</p>
<table>
<tr class="head"><th>Compose, job</th><th>Tenant</th><th>What</th><th>State</th><th>Progress</th>
<th>Worker</th><th>Begun</th><th>Ended</th><th>Reason</th></tr>
{rows}
</table>
</main>
</body>
</html>
"""


def render_page(composes: Iterable[tuple[ComposeSummary, Iterable[JobSummary]]], total: int) -> str:
    """Return the page.

    Args:
        composes: with their jobs, in the order of the rows.
    """
    rows: list[str] = []
    for compose, jobs in composes:
        rows.append(_compose_row(compose))
        rows.extend(map(_job_row, jobs))
    return _PAGE.format(
        style=_STYLE, summary=f"{total} composes; the newest {MAX_COMPOSES} are shown.", rows="\n".join(rows)
    )


def _compose_row(compose: ComposeSummary) -> str:
    what = compose.origin.value
    if compose.image_type is not None:
        what = f"{compose.distribution} {compose.architecture} {compose.image_type}"
    reason = compose.error.reason if compose.error else ""
    cells = (compose.id, compose.tenant or "default", what, compose.state, "", "", compose.created_at)
    return _row("compose", *cells, compose.finished_at, reason)


def _job_row(job: JobSummary) -> str:
    progress = f"{job.progress.phase} {job.progress.done}/{job.progress.total}" if job.progress else ""
    what = f"{job.step}, attempt {job.attempt}" if job.attempt else job.step
    reason = job.error.reason if job.error else ""
    return _row(
        "job", job.id, "", what, job.state, progress, job.worker, job.started_at, job.finished_at, reason
    )


def _row(kind: str, *cells: str | datetime | None) -> str:
    texts = (f"<td>{escape(_text(cell))}</td>" for cell in cells)
    return f'<tr class="{kind}">{"".join(texts)}</tr>'


def _text(cell: str | datetime | None) -> str:
    return cell if isinstance(cell, str) else cell.isoformat(" ", "seconds") if cell else ""


@attrs.frozen
class StatusPage:
    """Renders the rows of all tenants, for the operator."""

    _rows: JobsRows

    def routes(self) -> Mapping[str, Handlers]:
        """Return the handlers by path, for `ApiRouter`."""
        return {"/": {"GET": self._respond}}

    async def _respond(self, _: ApiRequest) -> ApiResponse:
        page = await self._rows.in_thread(self._render)
        return ApiResponse(200, page.encode(), "text/html; charset=utf-8", fields=_FIELDS)

    def _render(self) -> str:
        composes, total = self._rows.composes.find_page(ComposeFilter(), limit=MAX_COMPOSES)
        jobs = self._rows.jobs.summarize([compose.id for compose in composes])
        return render_page([(compose, jobs[compose.id]) for compose in composes], total)
