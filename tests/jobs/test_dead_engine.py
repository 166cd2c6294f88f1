"""A role whose engine ends at each start says so: to its service manager, and in ``/health``."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.acceptance.service import CHECKOUT, fetch
from tests.jobs.running_role import JOBS, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.acceptance

REASON = "the job engine does not answer: it has ended: "


def test_role_names_the_fault_of_its_engine(tmp_path: Path) -> None:
    engine = tmp_path / "data/engine"
    engine.mkdir(parents=True, mode=0o700)
    (engine / "temporal.sqlite").write_text("no database" * 1000)
    admin = f"127.0.0.1:{free_port()}"
    log, statuses = tmp_path / "log", list[str]()
    with (
        log.open("wb") as output,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "DATA_DIR": str(tmp_path / "data"),
            "JOBS_LISTEN": "unix:{DATA_DIR}/jobs.sock",
            "ADMIN_LISTEN": admin,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }

        def status() -> str:
            try:
                while True:
                    statuses.append(manager.recv(4096).decode())
            except BlockingIOError:
                return next((text for text in reversed(statuses) if text.startswith("STATUS=")), "")

        with forks.start(JOBS, cwd=tmp_path, env=environment, stdout=output, stderr=output) as role:
            try:
                wait_until(lambda: REASON in status(), log.read_text)
                answer = fetch(f"http://{admin}/health")
                assert answer.status == 503
                assert REASON.encode() in answer.body
                assert b"composes wait" in answer.body
            finally:
                role.terminate()
