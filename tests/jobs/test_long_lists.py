"""Lists of a tenant with many composes, of which some are large: their memory and time."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import sqlalchemy as sa

from image_service.jobs.database.tables import COMPOSES, open_database
from image_service.jobs.database.values import row_of
from image_service.jobs.model import ComposeState
from tests.acceptance.service import fetch
from tests.jobs.database.composing import Clock, make_compose
from tests.jobs.running_role import API, RunningRole, running_role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.acceptance

MIB = 2**20
LARGE_BYTES = 64 * 1024
LARGE_EACH = 100
AT_ONCE = 4
MOST_BYTES = 64 * MIB
"""That lists at once take beside the role."""


def rows(number: int) -> Iterator[Mapping[str, object]]:
    """Yield composes that have ended, one in a hundred with a large request."""
    clock = Clock()
    for count in range(number):
        clock.advance(1)
        text = "x" * LARGE_BYTES if count % LARGE_EACH == 0 else ""
        compose = make_compose(tenant="", created_at=clock(), request={"distribution": text})
        yield row_of(attrs.evolve(compose, state=ComposeState.SUCCESS, finished_at=clock()))


def fill(data_dir: Path, number: int) -> None:
    data_dir.mkdir()
    with closing(open_database(None, data_dir)) as database:
        found = rows(number)
        while batch := [row for _, row in zip(range(1000), found, strict=False)]:
            database.transact(lambda connection: connection.execute(sa.insert(COMPOSES), batch).close())


def resident_bytes(role: RunningRole, name: str) -> int:
    status = Path(f"/proc/{role.process.pid}/status").read_text()
    return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) * 1024


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=pytest.mark.soak)], ids=["few", "many"])
def test_lists_cost_what_they_show(number: int, tmp_path: Path) -> None:
    fill(tmp_path / "data", number)
    with running_role(tmp_path, JOBS_WORKER_SLOTS="0", JOBS_RETENTION="1000000000") as role:
        urls = [
            f"{role.url}{API}/composes/{query}"
            for query in ("", "?size=1000", f"?page={number // 1000 - 1}&size=1000")
        ]
        urls.append(f"{role.admin_url}/")
        before = resident_bytes(role, "VmRSS")
        Path(f"/proc/{role.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        for url in urls:
            begun = time.monotonic()
            assert fetch(url).status == 200
            print(f"{url}: {time.monotonic() - begun:.2f} s")  # noqa: T201 - figures for people
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(fetch, urls[:1] * AT_ONCE))
        taken = resident_bytes(role, "VmHWM") - before
        print(f"{AT_ONCE} lists at once take {taken / MIB:.0f} MiB")  # noqa: T201 - same
        assert [len(json.loads(answer.body)) for answer in answers] == [1000] * AT_ONCE
        assert taken < MOST_BYTES
