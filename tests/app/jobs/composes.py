"""The composes on the administrative listener: rows in SQLite, with doubles of engine and contents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs

from image_service.app.jobs.composes_api import ComposesApi
from tests.jobs.composer.composing import Composer, at_once


@attrs.define
class JobsStateDouble:
    """A state that the test sets."""

    reason: str = ""
    impairment: str = ""

    async def unready_reason(self) -> str:
        return self.reason

    async def describe_impairment(self) -> str:
        return self.impairment

    async def render_metrics(self) -> tuple[bytes, str]:
        return b"", "text/plain"

    async def render_images(self) -> str:
        return '{"images": []}'


def composes_api(composer: Composer, state: JobsStateDouble) -> ComposesApi:
    """Return the operations on the composes of an API."""
    rows: Any = SimpleNamespace(composes=composer.rows.composes, jobs=composer.rows.jobs, in_thread=at_once)
    contents: Any = composer.contents
    return ComposesApi(rows, composer.service, contents, state)
