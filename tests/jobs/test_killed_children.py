"""Worker and engine, killed while a compose is at a step: it ends once, with its image."""

from __future__ import annotations

import hashlib
import os
import signal
from base64 import b64decode
from typing import TYPE_CHECKING

import pytest

from tests.jobs.running_role import DISTRIBUTION, RunningRole, running_role, wait_until
from tests.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

PROGRAMS = {"worker": "image_service.cli\0worker", "engine": "temporal\0server"}
MOMENTS = {
    "queued": "added compose {id}",
    "customized": "customize of compose {id}, attempt 1",
    "converted": "convert of compose {id}, attempt 1",
}
IN_EVERY_RUN = {("engine", "customized")}


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_role(tmp_path_factory.mktemp("jobs"), JOBS_HEARTBEAT_TIMEOUT="15") as running:
        yield running


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        pytest.param(victim, moment, marks=() if (victim, moment) in IN_EVERY_RUN else pytest.mark.soak)
        for victim in ("worker", "engine")
        for moment in MOMENTS
    ],
)
def test_compose_ends_once_although_a_child_is_killed(role: RunningRole, victim: str, moment: str) -> None:
    compose_id = role.compose("start", "--distribution", DISTRIBUTION, "--type", "vsphere-ova").split()[0]
    wait_until(lambda: MOMENTS[moment].format(id=compose_id) in role.log, lambda: role.log)
    for pid in descendants(role.process.pid, PROGRAMS[victim]):
        os.kill(pid, signal.SIGKILL)
    assert role.wait_until_ended(compose_id)["status"] == "success", role.log
    ended = f'"compose {compose_id} has ended: success"'
    wait_until(lambda: ended in role.log, lambda: role.log)  # the row comes before the line
    answer = role.get(f"/composes/{compose_id}/download")
    digest = b64decode(answer.headers["Repr-Digest"].removeprefix("sha-256=:").removesuffix(":"))
    assert hashlib.sha256(answer.body).digest() == digest
    assert role.log.count(ended) == 1
