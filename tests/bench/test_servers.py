"""Errors of servers that do not start."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from bench import servers, wrk
from bench.ports import free_port
from bench.stage import SMALL, Stage
from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    from pathlib import Path

FOR_EVER = "import signal; print('here', flush=True); signal.pause()"
UNABLE = "import sys; print('no room'); sys.exit(3)"


def never() -> None:
    raise ConnectionRefusedError("connection refused")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "one.log"
    path.write_text("of another time\n")
    return path


def test_server_that_exits_is_reported_with_its_output(log: Path) -> None:
    with ExitStack() as stack, pytest.raises(SystemExit) as caught:
        servers.start(stack, [sys.executable, "-c", UNABLE], log, never)
    assert str(caught.value).endswith("exited with status 3 before it was up; one.log ends:\nno room\n")


def test_server_that_never_answers_is_reported_and_stopped(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_START_SECONDS", 0)
    with ExitStack() as stack, pytest.raises(SystemExit) as caught:
        servers.start(stack, [sys.executable, "-c", FOR_EVER], log, never)
    assert "is not up after 0 s: connection refused; one.log ends:" in str(caught.value)


def test_server_is_awaited_and_stopped_with_the_stack(log: Path) -> None:
    def probe() -> None:
        if "here" not in log.read_text():
            raise FileNotFoundError

    with ExitStack() as stack:
        process = servers.start(stack, [sys.executable, "-c", FOR_EVER], log, probe)
        assert "here" in log.read_text()
        assert process.poll() is None
    assert process.poll() is not None


def test_occupied_port_of_nginx_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_client("nginx")
    with socket.socket() as other, ExitStack() as stack:
        other.bind(("127.0.0.1", 0))  # without SO_REUSEADDR
        taken = other.getsockname()[1]
        ports = iter([taken, free_port(), free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(ports))
        certificate = Stage(SMALL, tmp_path, stack).certificate
        with pytest.raises(SystemExit, match=rf"bind\(\) to 127.0.0.1:{taken} failed"):
            servers.start_nginx(stack, tmp_path, tmp_path / "a.iso", certificate)


def test_server_unreachable_by_wrk_is_reported() -> None:
    needs_client("wrk")
    with pytest.raises(SystemExit, match="unable to connect"):
        wrk.run_wrk(f"http://127.0.0.1:{free_port()}/", 1, 1)


def test_peer_with_an_environment_of_its_own_is_started_by_its_interpreter(tmp_path: Path) -> None:
    assert servers.interpreter_of(servers.CHECKOUT) == servers.interpreter_of(tmp_path) == sys.executable
    own = tmp_path / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert servers.interpreter_of(tmp_path) == str(own)
