"""Imports and exports, while servers and workers are killed at random: each task ends once."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from botocore.exceptions import BotoCoreError

from tests.jobs.ec2_clients import (
    ImageUpload,
    base_disk,
    ec2_client,
    ec2_settings,
    images_of,
    make_disk,
    s3_client,
)
from tests.jobs.engine.servers import running_engine
from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.postgres import running_postgres
from tests.processes import descendants
from tests.s3_server import BUCKET, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.acceptance

WORKER = "image_service.cli\0worker"
FEW = 5
TASKS_PER_KILL = 5
MOST_LOST = 0.1
"""Of the tasks: a job has three attempts, and each kill may cost it one."""


@attrs.define
class Replicas:
    """Two servers, each with a worker, one of which at a time is killed and started again."""

    directory: Path
    variables: Mapping[str, str]
    stack: ExitStack
    roles: list[RunningRole] = attrs.field(factory=list)

    def start(self) -> None:
        """Start both."""
        for number in range(2):
            (self.directory / str(number)).mkdir()
            self.roles.append(self._run(number))

    def kill(self, number: int, *, only_worker: bool) -> None:
        """Kill a worker, which its server starts again; or the server, whose worker ends with it."""
        role = self.roles[number]
        if only_worker:
            for pid in descendants(role.process.pid, WORKER):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        role.process.kill()
        role.process.wait()
        self.roles[number] = self._run(number)

    def _run(self, number: int) -> RunningRole:
        return self.stack.enter_context(running_role(self.directory / str(number), **self.variables))


@contextmanager
def running_replicas(directory: Path) -> Iterator[tuple[Replicas, Any]]:
    """Run two servers on one database, store and engine; yield them and a client of the store."""
    (directory / "secret").write_text(secrets.token_hex(32))
    (directory / "engine").mkdir()
    with (
        running_postgres() as postgres,
        running_s3_server(directory / "s3") as s3,
        running_engine(directory / "engine") as engine,
        ExitStack() as stack,
    ):
        variables = {
            **ec2_settings(directory, s3),
            "DATABASE_URL": postgres.create_database(),
            "INSTANCE_SECRET_FILE": str(directory / "secret"),
            "STORE_URL": f"s3://{BUCKET}/store",
            "TEMPORAL_ADDRESS": engine.address,
            "JOBS_HEARTBEAT_TIMEOUT": "10",
            "JOBS_WORKER_SLOTS": "1",
            "EC2_MAX_TASKS": "1000",
        }
        replicas = Replicas(directory, variables, stack)
        replicas.start()
        yield replicas, s3_client(s3)


def ask(replicas: Replicas, call: Callable[[Any], Any]) -> Any:
    """Return the answer of the first replica that gives one."""
    answers: list[Any] = []

    def is_answered() -> bool:
        for role in replicas.roles:
            with suppress(BotoCoreError):
                answers.append(call(ec2_client(role.url)))
                return True
        return False

    wait_until(is_answered, lambda: replicas.roles[0].log)
    return answers[0]


def start_import(replicas: Replicas, upload: ImageUpload) -> str:
    """Request an import, then upload it; return the task."""
    parameters = upload.parameters
    answer = ask(
        replicas,
        lambda ec2: ec2.import_volume(AvailabilityZone="here", Description=upload.name, **parameters),
    )
    upload.put()
    return str(answer["ConversionTask"]["ConversionTaskId"])


def start_export(replicas: Replicas, name: str) -> str:
    """Request an export of a base disk; return the task."""
    instance_id = base_disk(replicas.roles[0])["instance_id"]
    answer = ask(
        replicas,
        lambda ec2: ec2.create_instance_export_task(
            InstanceId=instance_id,
            TargetEnvironment="vmware",
            Description=name,  # two equal requests in a second would be one
            ExportToS3Task={"S3Bucket": BUCKET, "S3Prefix": "exports/"},
        ),
    )
    return str(answer["ExportTask"]["ExportTaskId"])


def states(replicas: Replicas) -> dict[str, dict[str, Any]]:
    """Return all tasks by id."""
    imports = ask(replicas, lambda ec2: ec2.describe_conversion_tasks())["ConversionTasks"]
    exports = ask(replicas, lambda ec2: ec2.describe_export_tasks())["ExportTasks"]
    return {
        **{task["ConversionTaskId"]: task for task in imports},
        **{task["ExportTaskId"]: task for task in exports},
    }


def keys_of(client: Any, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


@pytest.mark.soak
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(FEW, id="five"),
        pytest.param(100, id="hundred", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_each_task_ends_once_although_servers_and_workers_are_killed(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)  # noqa: S311 - no secret
    disk = make_disk(tmp_path / "disk.raw", 4)
    with running_replicas(tmp_path) as (replicas, client):
        started = set()
        uploads = {}
        for count in range(number):
            if count % 2:
                started.add(start_export(replicas, f"export-{count}"))
            else:
                upload = ImageUpload(client, disk, "RAW", f"upload-{count}")
                task_id = start_import(replicas, upload)
                uploads[task_id] = upload
                started.add(task_id)
            if count % TASKS_PER_KILL == TASKS_PER_KILL - 1:
                time.sleep(chance.random())
                replicas.kill(chance.randrange(2), only_worker=count % 2 == 0)
        wait_until(
            lambda: all(task["State"] in {"completed", "cancelled"} for task in states(replicas).values()),
            lambda: str(states(replicas)),
            seconds=300 + 20 * number,
        )
        ended = states(replicas)
        assert len(started) == number
        assert ended.keys() == started
        lost = {task_id: task for task_id, task in ended.items() if task["State"] == "cancelled"}
        assert len(lost) <= MOST_LOST * number, lost
        check_results(replicas, client, ended.keys() - lost.keys())
        assert all(upload.is_deleted() for task_id, upload in uploads.items() if task_id not in lost)
        if number > FEW:  # upkeep deletes the other objects within a minute
            images = len(images_of(replicas.roles[0]))
            wait_until(lambda: len(keys_of(client, "store/")) == images, lambda: f"{images} images")


def check_results(replicas: Replicas, client: Any, completed: set[str]) -> None:
    """Fail the test unless each completed task has one result, and no other task has any."""
    exports = {f"exports/{task_id}.vmdk" for task_id in completed if task_id.startswith("export-")}
    assert set(keys_of(client, "exports/")) >= exports
    images = images_of(replicas.roles[0])
    assert sorted(image["source"] for image in images) == sorted(
        f"import:{each}" for each in completed if each.startswith("import-")
    )
    assert len({image["sha256"] for image in images}) == 1  # the same disk, converted in the same way
