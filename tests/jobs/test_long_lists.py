"""Lists of a tenant with many composes or EC2 tasks, of which some are large: their memory and time."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa

from image_service.jobs.conversion_tasks.operations import make_record
from image_service.jobs.database.tables import COMPOSES, TASKS, open_database
from image_service.jobs.database.values import row_of
from image_service.jobs.model import ComposeState
from image_service.jobs.task_model import TaskKind
from tests.acceptance.service import fetch
from tests.jobs.database.composing import Clock, make_compose
from tests.jobs.ec2_clients import ec2_client, import_settings
from tests.jobs.running_role import API, RunningRole, running_role
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.acceptance

MIB = 2**20
LARGE_BYTES = 64 * 1024
LARGE_EACH = 100
LARGE_DESCRIPTION = 60_000  # characters
STORE = "https://store.example"
DISK = {"UserBucket": {"S3Bucket": "b", "S3Key": "k"}, "Format": "RAW", "Bytes": 512}
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


def fill(url: str | None, data_dir: Path, number: int) -> None:
    data_dir.mkdir()
    with closing(open_database(url, data_dir)) as database:
        found = rows(number)
        while batch := [row for _, row in zip(range(1000), found, strict=False)]:
            database.transact(lambda connection: connection.execute(sa.insert(COMPOSES), batch).close())


def resident_bytes(role: RunningRole, name: str) -> int:
    status = Path(f"/proc/{role.process.pid}/status").read_text()
    return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) * 1024


@pytest.mark.parametrize("kind", ["sqlite", soaked("postgresql")])
@pytest.mark.parametrize("number", [2000, soaked(100_000)], ids=["few", "many"])
def test_lists_cost_what_they_show(
    number: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    variables = {"JOBS_WORKER_SLOTS": "0", "JOBS_RETENTION": "1000000000"}
    if kind == "postgresql":
        variables["DATABASE_URL"] = request.getfixturevalue("postgres").create_database()
        (tmp_path / "secret").write_text("5e" * 32)
        variables["INSTANCE_SECRET_FILE"] = str(tmp_path / "secret")
    fill(variables.get("DATABASE_URL"), tmp_path / "data", number)
    with running_role(tmp_path, **variables) as role:
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


def task_rows(kind: TaskKind, number: int) -> Iterator[tuple[Mapping[str, object], Mapping[str, object]]]:
    """Yield the composes and tasks of imports or exports, one in a hundred with a long description."""
    clock = Clock()
    for count in range(number):
        clock.advance(1)
        state = ComposeState.SUCCESS if count % LARGE_EACH else ComposeState.FAILURE
        compose = make_compose(
            tenant="", created_at=clock(), image_type=None, state=state, finished_at=clock()
        )
        description = "x" * LARGE_DESCRIPTION if count % LARGE_EACH == 0 else ""
        request: dict[str, Any] = {"Disks": [DISK], "Description": description}
        if kind is TaskKind.EXPORT_INSTANCE:
            place = {"DiskImageFormat": "VMDK", "S3Bucket": "b", "S3Key": "k"}
            request = {"InstanceId": "i-1", "TargetEnvironment": "vmware", "ExportToS3Task": place}
            request["Description"] = description[:255]
        tags = {"number": str(count)}
        yield row_of(compose), row_of(make_record(compose, kind, request, tags=tags).task)


def fill_tasks(data_dir: Path, number: int) -> None:
    data_dir.mkdir()
    with closing(open_database(None, data_dir)) as database:
        for kind in (TaskKind.IMPORT_IMAGE, TaskKind.EXPORT_INSTANCE):
            found = task_rows(kind, number // 2)
            while batch := list(islice(found, 1000)):

                def insert(connection: sa.Connection, batch: list[Any] = batch) -> None:
                    connection.execute(sa.insert(COMPOSES), [compose for compose, _ in batch])
                    connection.execute(sa.insert(TASKS), [task for _, task in batch])

                database.transact(insert)


@pytest.mark.parametrize("number", [2200, pytest.param(100_000, marks=pytest.mark.soak)], ids=["few", "many"])
def test_task_lists_cost_what_they_show(number: int, tmp_path: Path) -> None:
    fill_tasks(tmp_path / "data", number)
    last = {"Name": "tag:number", "Values": [str(number // 2 - 1)]}
    none = {"Name": "task-state", "Values": ["active"]}
    calls: list[tuple[str, int, Callable[[Any], Any]]] = [
        ("ImportImageTasks", 1000, lambda ec2: ec2.describe_import_image_tasks()),
        ("ImportImageTasks", 5, lambda ec2: ec2.describe_import_image_tasks(MaxResults=5)),
        ("ImportImageTasks", 1, lambda ec2: ec2.describe_import_image_tasks(Filters=[last])),
        ("ImportImageTasks", 0, lambda ec2: ec2.describe_import_image_tasks(Filters=[none])),
        ("ExportTasks", 1000, lambda ec2: ec2.describe_export_tasks()),
    ]
    with (
        running_role(
            tmp_path, JOBS_WORKER_SLOTS="0", JOBS_RETENTION="1000000000", **import_settings(tmp_path, STORE)
        ) as role,
        closing(ec2_client(role.url)) as ec2,
    ):
        ec2.describe_conversion_tasks()
        before = resident_bytes(role, "VmRSS")
        Path(f"/proc/{role.process.pid}/clear_refs").write_text("5")
        for member, expected, call in calls:
            begun = time.monotonic()
            found = call(ec2)[member]
            print(f"{member}: {len(found)} in {time.monotonic() - begun:.2f} s")  # noqa: T201 - same
            assert len(found) == expected
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda _: calls[0][2](ec2), range(AT_ONCE)))
        taken = resident_bytes(role, "VmHWM") - before
        print(f"{AT_ONCE} lists at once take {taken / MIB:.0f} MiB")  # noqa: T201 - same
        assert taken < MOST_BYTES
