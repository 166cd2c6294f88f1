"""Unix sockets of APIs: their mode, and other files at their paths."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from twisted.internet.protocol import Factory

from image_service.common.concurrency.process_parts import PartsStack
from image_service.core.errors import ConfigurationError
from image_service.server.web_api.listening import ApiListener
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


def listener(reactor: EPollReactor) -> ApiListener:
    return ApiListener(PartsStack(reactor), "JOBS_LISTEN", "test", Factory())


@ensure_deferred
async def test_socket_is_for_owner_and_group_and_removed_at_the_end(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.sock"
    started = listener(reactor)
    started.listen_unix(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await started.parts.aclose()
    with pytest.raises(FileNotFoundError):
        path.lstat()


@ensure_deferred
async def test_socket_that_a_crash_has_left_is_replaced(reactor: EPollReactor, tmp_path: Path) -> None:
    path = tmp_path / "jobs.sock"
    with closing(socket.socket(socket.AF_UNIX)) as left_over:
        left_over.bind(str(path))
    started = listener(reactor)
    started.listen_unix(path)
    await started.parts.aclose()


@pytest.mark.parametrize("kind", ["socket in use", "file"])
def test_other_file_at_the_path_stays(reactor: EPollReactor, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "jobs.sock"
    with closing(socket.socket(socket.AF_UNIX)) as other:
        if kind == "file":
            path.write_text("")
        else:
            other.bind(str(path))
            other.listen()
        before = path.stat().st_ino
        with pytest.raises(ConfigurationError, match=r"^JOBS_LISTEN: .*jobs\.sock is in use, or no socket"):
            listener(reactor).listen_unix(path)
        assert path.stat().st_ino == before
