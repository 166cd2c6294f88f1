"""Four tenants at full speed, a quiet fifth, and what they take of the role."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.jobs.database.tables import DATABASE_FILE
from tests.jobs.random_client import MIB, MOST_DISK_BYTES, RandomClient
from tests.jobs.running_role import API, RunningRole, compose_request, needs_disk_programs
from tests.jobs.tenant_clients import ask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Event

    from tests.acceptance.service import Answer

SEED = 31
NOISY = ("1", "2", "3", "4")
QUIET = "5"
MOST_BYTES = 768 * MIB
"""Of a tenant."""
MOST_ROLE_BYTES = 256 * MIB
MOST_BYTES_WITH_ENGINE = 512 * MIB
PAUSE_SECONDS = 0.2
VARIABLES = {
    "JOBS_MAX_BYTES": str(MOST_BYTES),
    "JOBS_MAX_DISK_SIZE": str(MOST_DISK_BYTES),
    "JOBS_MAX_QUEUED": "10",
    "JOBS_HEARTBEAT_TIMEOUT": "10",
    "JOBS_POLL_TIMEOUT": "1",
}


class QuietTenant:
    """A tenant that orders an image, waits for it and downloads it; each answer must be the right one."""

    def __init__(self, role: RunningRole) -> None:
        self._role = role
        self.images = 0
        self.seconds: list[float] = []

    def make_image(self) -> None:
        """Order an image, and wait until it is downloaded."""
        compose_id = self._ask("/compose", compose_request("minimal-raw")).json()["id"]
        while (status := self._ask(f"/composes/{compose_id}").json()["status"]) == "pending":
            time.sleep(PAUSE_SECONDS)
            assert compose_id.encode() in self._ask("/composes/").body
        if status == "failure":
            needs_disk_programs()
        assert status == "success", self._ask(f"/composes/{compose_id}/logs").body
        assert self._ask(f"/composes/{compose_id}/download").body
        self.images += 1

    def _ask(self, path: str, document: object = None) -> Answer:
        begun = time.monotonic()
        answer = ask(self._role, API + path, QUIET, document)
        self.seconds.append(time.monotonic() - begun)
        assert answer.status in {200, 201}, (path, answer)
        return answer


@attrs.define
class StoredBytes:
    """The most that the object store has had of each tenant; "": of jobs that were never seen in the rows."""

    data_dir: Path
    most: Counter[str] = attrs.field(factory=Counter)
    tenants: dict[str, str] = attrs.field(factory=dict)

    def sample_until(self, ended: Event) -> None:
        """Sample until the event."""
        while not ended.wait(PAUSE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Count the blocks of all objects."""
        with closing(sqlite3.connect(self.data_dir / DATABASE_FILE, timeout=60)) as database:
            self.tenants.update(database.execute("SELECT id, tenant FROM jobs"))
        stored: Counter[str] = Counter()
        # Not Path.rglob, which fails on directories that are removed meanwhile.
        found = os.walk(self.data_dir / "store")
        for path in (Path(directory, name) for directory, _, names in found for name in names):
            job = re.search("/jobs/([^/]+)/", str(path))
            try:
                stored[self.tenants.get(job[1], "") if job else ""] += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        self.most |= stored


def peak_bytes(role: RunningRole) -> dict[str, int]:
    """Return the most memory that the role and its engine have had."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "status").read_text()
        except OSError:  # it has ended
            continue
        values = dict(re.findall(r"(\w+):\s+(\S+)", text))
        if int(path.name) == role.process.pid:
            found["role"] = int(values["VmHWM"]) * 1024
        elif int(values["PPid"]) == role.process.pid and "temporal" in values["Name"]:
            found["engine"] = int(values["VmHWM"]) * 1024
    return found


def noisy_clients(role: RunningRole, number: int) -> Sequence[RandomClient]:
    """Return clients, a number of each tenant."""
    known: dict[str, list[str]] = {tenant: [] for tenant in NOISY}
    return [
        RandomClient(role, tenant, f"{SEED}/{tenant}/{count}", known, f"127.0.0.{2 + int(tenant)}")
        for tenant in NOISY
        for count in range(number)
    ]
