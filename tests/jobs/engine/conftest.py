from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.engine.engine_child import find_program, server_command
from tests.jobs.engine.driver import Driver
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of an engine on SQLite, for all tests of a process."""
    port = free_port()
    command = server_command(find_program(), port, tmp_path_factory.mktemp("engine") / "temporal.sqlite")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield f"127.0.0.1:{port}"
        process.kill()


@pytest.fixture
def driver(engine_address: str) -> Iterator[Driver]:
    found = Driver(engine_address)
    found.start()
    yield found
    found.stop()
