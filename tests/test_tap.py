"""The twistd plugin's options and service, and the process that they become."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from twisted.python import usage

from image_service.app.service import ImageService
from image_service.app.workers.supervisor import Supervisor
from image_service.tap import Options, makeService
from image_service.transport.tcp import bind

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

# Sends SIGTERM to itself as soon as the handler for it is installed for the given time.
TERMINATED = """
import os, signal, sys
install, times = signal.signal, int(sys.argv.pop(1))

def install_and_terminate(number, handler):
    global times
    previous = install(number, handler)
    if number == signal.SIGTERM:
        times -= 1
        if not times:
            os.kill(os.getpid(), number)
    return previous

signal.signal = install_and_terminate
from image_service.cli import main
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"DATA_DIR": str(tmp_path), "DRAIN_DELAY": "0", "STANDALONE_LISTEN": "127.0.0.1:0"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def parsed(*arguments: str) -> Options:
    options = Options()  # type: ignore[no-untyped-call]
    options.parseOptions(arguments)  # type: ignore[no-untyped-call]
    return options


def serve(*program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, "serve", "--standalone"]
    return subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )


def test_options_read_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LISTEN_PORT", "1234")
    settings = parsed("--standalone").settings
    assert (settings.listen.port, settings.storage.data_dir) == (1234, tmp_path)


def test_options_report_all_faults_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PORT", "x")
    with pytest.raises(usage.UsageError) as raised:
        parsed()
    _, *faults = str(raised.value).splitlines()
    assert [fault.partition(":")[0].partition("=")[0] for fault in faults] == [
        "LISTEN_PORT",
        "ASSISTED_SERVICE_HOST",
        "OS_IMAGES or RHCOS_VERSIONS",
    ]


@pytest.mark.parametrize(("workers", "kind"), [("1", ImageService), ("2", Supervisor)])
def test_service_of_several_workers_is_a_supervisor(
    reactor: EPollReactor, monkeypatch: pytest.MonkeyPatch, workers: str, kind: type
) -> None:
    del reactor  # asked for only so that it is installed
    monkeypatch.setenv("WORKERS", workers)
    assert type(makeService(parsed("--standalone"))) is kind


def test_port_in_use_exits_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind(0) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("LISTEN_PORT", str(port))
        done = serve("-m", "image_service.cli")
    assert done.returncode == 1
    assert f"port {port}: Address already in use" in done.stdout
    assert "Traceback" not in done.stdout


def test_service_that_cannot_start_exits_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("LISTEN_PORT", "0")
        monkeypatch.setenv("STANDALONE_LISTEN", address)
        done = serve("-m", "image_service.cli")
    assert done.returncode == 1
    assert "the service cannot start" in done.stdout


@pytest.mark.parametrize("times", [1, 3])
def test_sigterm_during_the_start_exits_with_status_0(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The first handler is the console script's, the third is ours: it replaces the reactor's at once."""
    monkeypatch.setenv("LISTEN_PORT", "0")
    done = serve("-c", TERMINATED, str(times))
    assert done.returncode == 0, done.stdout
    assert ("stopped" in done.stdout) == (times > 1), done.stdout
