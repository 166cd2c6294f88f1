from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import deferLater

from image_service.common.files.modes import private_mode
from image_service.core.errors import ConfigurationError
from image_service.jobs.engine.engine_child import EngineChild, find_program
from tests.processes import exists
from tests.pytwisted import async_fixture, ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twisted.internet.epollreactor import EPollReactor

pytestmark = pytest.mark.acceptance


@async_fixture
async def child(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[EngineChild]:
    found = EngineChild(reactor, tmp_path / "engine", find_program())
    await found.start()
    await until(reactor, lambda: listens(found))
    yield found
    await found.stop()


async def until(reactor: EPollReactor, condition: Callable[[], bool]) -> None:
    while not condition():
        await deferLater(reactor, 0.05)


def listens(child: EngineChild) -> bool:
    host, _, port = child.address.partition(":")
    with socket.socket() as found:
        return found.connect_ex((host, int(port))) == 0


def environment_of(child: EngineChild) -> list[bytes]:
    return Path(f"/proc/{child.process.pid}/environ").read_bytes().split(b"\0")


@ensure_deferred
async def test_child_is_started_again_on_its_port(child: EngineChild, reactor: EPollReactor) -> None:
    address, pid = child.address, child.process.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    await until(reactor, lambda: child.process.pid not in {None, pid})
    await until(reactor, lambda: listens(child))
    assert (child.address, child.process.restarts) == (address, 1)


@ensure_deferred
async def test_child_has_the_name_of_a_user(child: EngineChild) -> None:
    """Without a name, in /etc/passwd or here, it ends at once."""
    assert b"USER=image-service" in environment_of(child)


@ensure_deferred
async def test_child_has_a_target_for_its_memory(child: EngineChild) -> None:
    assert b"GOMEMLIMIT=224MiB" in environment_of(child)


@ensure_deferred
async def test_files_are_private_from_the_first_start_on(child: EngineChild, tmp_path: Path) -> None:
    assert listens(child)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "engine").iterdir()}
    assert {"pid", "temporal.sqlite"} <= modes.keys()
    assert {name for name, mode in modes.items() if mode & ~private_mode(0o600)} == set()


@ensure_deferred
async def test_stop_leaves_nothing(child: EngineChild, reactor: EPollReactor) -> None:
    pid = child.process.pid
    assert pid
    await child.stop()
    assert not exists(pid)
    assert not listens(child)
    await deferLater(reactor, 1.0)  # longer than the first delay before another start
    assert child.process.pid is None


@ensure_deferred
async def test_directory_has_one_engine(child: EngineChild, reactor: EPollReactor, tmp_path: Path) -> None:
    second = EngineChild(reactor, tmp_path / "engine", find_program())
    with pytest.raises(ConfigurationError, match="in use by another process"):
        await second.start()
    await second.stop()
    assert listens(child)
    assert (tmp_path / "engine").stat().st_mode & 0o777 == 0o700


@ensure_deferred
async def test_start_ends_the_engine_of_a_service_that_has_crashed(
    child: EngineChild, reactor: EPollReactor, tmp_path: Path
) -> None:
    leftover = child.process.pid
    assert leftover
    for descriptor in child._locks:  # as the kernel does when a process dies
        os.close(descriptor)
    child._locks = []
    child.process._process = None
    heir = EngineChild(reactor, tmp_path / "engine", find_program())
    await heir.start()
    await until(reactor, lambda: listens(heir))
    assert heir.process.pid != leftover
    await until(reactor, lambda: not exists(leftover))
    await heir.stop()


@ensure_deferred
async def test_program_that_ends_at_once_is_started_less_and_less_often(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    program = tmp_path / "temporal"
    program.write_text("#!/bin/sh\necho cannot open the database >&2\nexit 1\n")
    program.chmod(0o755)
    child = EngineChild(reactor, tmp_path / "engine", program)
    await child.start()
    await until(reactor, lambda: child.process.restarts >= 2)
    await child.stop()
    assert child.process.pid is None
