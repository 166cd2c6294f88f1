"""The command line of the worker that the role starts."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

from image_service.app.jobs.built_in_worker import start_worker
from image_service.settings.jobs.jobs import JobsSettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from pathlib import Path


def command_of(directory: Path, **variables: str) -> list[str]:
    settings = read_group(JobsSettings, variables, []).in_directory(directory)
    parts = Mock()
    start_worker(parts, directory, settings, slots=2, worker_token="t")
    (call,) = parts.reactor.spawnProcess.call_args_list
    command: list[str] = call.args[2]
    return command


def test_worker_has_what_is_set(tmp_path: Path) -> None:
    command = command_of(tmp_path, JOBS_WORKER_NICE="7", JOBS_WORKER_SCRATCH_BYTES="1000000")
    assert command[0].endswith("/nice")
    assert command[1:3] == ["-n", "7"]
    assert command[command.index("--scratch-bytes") + 1] == "1000000"
    assert command[command.index("--slots") + 1] == "2"


def test_worker_is_as_the_role_by_default(tmp_path: Path) -> None:
    command = command_of(tmp_path)
    assert not command[0].endswith("/nice")
    assert "--scratch-bytes" not in command
