"""What programs print to standard error: in the journal each line begins with its priority."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests import forks

CLI = (sys.executable, "-m", "image_service.cli")
TIMEOUT_SECONDS = 100
FAULTS: dict[str, tuple[tuple[str, ...], dict[str, str], int, list[str]]] = {
    "setting": (
        (*CLI, "serve", "--standalone"),
        {"LISTEN_PORT": "abc"},
        78,
        ["<3>image-service: the configuration is not valid:", "<3>LISTEN_PORT='abc': "],
    ),
    "settings of jobs": (
        (*CLI, "jobs"),
        {"JOBS_RETENTION": "x", "JOBS_POLL_TIMEOUT": "y"},
        78,
        ["<3>image-service jobs: the configuration", "<3>JOBS_POLL_TIMEOUT=", "<3>JOBS_RETENTION="],
    ),
    "reactor": (
        (forks.TWISTD, "--nodaemon", "--pidfile=", "--reactor=poll", "image-service-jobs"),
        {},
        78,
        ["<3>image-service: the jobs role needs asyncio's reactor"],
    ),
    "option": (
        (*CLI, "worker", "--serve=x"),
        {},
        2,
        ["<3>image-service worker: unknown option --serve", "<3>Try 'image-service worker --help'."],
    ),
    "worker": (
        (*CLI, "worker", "--server=http://127.0.0.1:1"),
        {"TOOLKIT": "false"},
        78,
        ["<3>image-service worker: TOOLKIT: "],
    ),
    "command": ((*CLI, "inspect", "/nowhere"), {}, 1, ["<3>image-service: /nowhere: "]),
    "load test": ((*CLI, "loadtest", "--clients=0"), {}, 2, ["<3>image-service: "]),
    "toolkit": (
        (sys.executable, "-m", "image_service.toolkit", "inspect", "/nowhere"),
        {},
        6,
        ["<3>image-toolkit: "],
    ),
    "warnings": (
        (*CLI, "serve", "--standalone", "--check", "--offline"),
        {},
        0,
        ["<4>image-service: warning: ", "<6>image-service: the configuration is valid"],
    ),
}


def run(command: tuple[str, ...], variables: dict[str, str], stderr: int, journal: int) -> int:
    """Run a command, whose journal is a descriptor, and return its status."""
    status = os.fstat(journal)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(forks.ROOT),
        "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}",
        **variables,
    }
    with (
        Path(os.devnull).open("wb") as nothing,
        forks.Fork(command, env=environment, stdout=nothing, stderr=stderr) as process,
    ):
        return process.wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize("name", FAULTS)
def test_lines_in_the_journal_have_priorities(tmp_path: Path, name: str) -> None:
    command, variables, status, expected = FAULTS[name]
    variables = {"DATA_DIR": str(tmp_path / "absent"), **variables}
    with (tmp_path / "journal").open("w+") as journal:
        assert run(command, variables, journal.fileno(), journal.fileno()) == status
        journal.seek(0)
        lines = journal.read().splitlines()
    assert [line for line in lines if line[:3] not in ("<3>", "<4>", "<6>")] == []
    assert [text for text in expected if not any(line.startswith(text) for line in lines)] == []


def test_journal_is_a_socket_under_systemd() -> None:
    ours, journal = socket.socketpair()
    with ours, journal:
        assert run((*CLI, "extract"), {}, journal.fileno(), journal.fileno()) == 2
        journal.shutdown(socket.SHUT_WR)
        assert ours.recv(4096).startswith(b"<3>image-service extract: ")


def test_lines_for_others_have_no_priority(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as journal, (tmp_path / "file").open("w") as file:
        run((*CLI, "inspect", "/nowhere"), {}, file.fileno(), journal.fileno())
    assert (tmp_path / "file").read_text().startswith("image-service: /nowhere: ")
