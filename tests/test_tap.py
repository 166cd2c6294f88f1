"""The twistd plugin's options and service, and the process that they become."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from image_service.app.processes.supervisor import Supervisor
from image_service.app.service import ImageService
from image_service.common.concurrency.signals import UNUSED
from image_service.tap import Options, makeService
from tests import forks
from tests.acceptance.service import SERVE, TWISTD

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
TIMEOUT_SECONDS = 60


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"DATA_DIR": str(tmp_path), "DRAIN_DELAY": "0", "STANDALONE_LISTEN": "127.0.0.1:0"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def parsed(*arguments: str) -> Options:
    options = Options()  # type: ignore[no-untyped-call]
    options.parseOptions(arguments)  # type: ignore[no-untyped-call]
    return options


PROGRAMS = {"serve": (*SERVE, "--standalone"), "twistd": (*TWISTD, "--standalone")}


def serve(module: str, number: int) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", module, str(number), "serve", "--standalone")
    return forks.run(command, timeout=TIMEOUT_SECONDS)


def test_options_read_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LISTEN_PORT", "1234")
    settings = parsed("--standalone").settings
    assert (settings.listen.port, settings.storage.data_dir) == (1234, tmp_path)


def test_options_print_all_faults_of_the_environment_and_exit_with_78(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LISTEN_PORT", "x")
    with pytest.raises(SystemExit) as raised:
        parsed()
    assert raised.value.code == 78
    _, *faults = capsys.readouterr().err.splitlines()
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


@pytest.mark.parametrize(
    ("variable", "workers", "program"),
    [  # each pair once
        ("LISTEN_PORT", "1", "serve"),
        ("LISTEN_PORT", "2", "twistd"),
        ("HTTP_LISTEN_PORT", "1", "twistd"),
        ("HTTP_LISTEN_PORT", "2", "serve"),
        ("STANDALONE_LISTEN", "1", "serve"),
        ("STANDALONE_LISTEN", "2", "twistd"),
    ],
)
def test_port_in_use_exits_with_78_and_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, program: str, workers: str, variable: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"127.0.0.1:{port}" if variable == "STANDALONE_LISTEN" else str(port)
        monkeypatch.setenv("LISTEN_PORT", "0")
        monkeypatch.setenv("WORKERS", workers)
        monkeypatch.setenv(variable, text)
        done = forks.run(PROGRAMS[program], timeout=TIMEOUT_SECONDS)
    printed = done.stdout + done.stderr
    assert done.returncode == 78, printed
    fault = f"{variable}={text}: 127.0.0.1 port {port} is in use by another process; choose another port"
    assert len([line for line in printed.splitlines() if fault in line]) == 1, printed
    assert "Traceback" not in printed


def test_log_begins_with_versions_and_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PORT", "0")
    monkeypatch.setenv("LISTEN_ADDRESS", "::")
    monkeypatch.setenv("HTTP_LISTEN_PORT", "0")
    monkeypatch.setenv("HTTP_SERVES_INITRD", "false")
    monkeypatch.setenv("WORKERS", "2")
    lines = serve("tests.terminated_service", 3).stdout.splitlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert re.fullmatch(
        r"image-service \d\S+ \(layout \d+, Python 3\.\S+, Twisted \S+, OpenSSL \S+\)", messages[0]
    )
    listening = [re.sub(r":[1-9]\d* ", ":PORT ", text) for text in messages if text.startswith("listening")]
    assert listening == [
        "listening on [::]:PORT (HTTP: images)",
        "listening on [::]:PORT (HTTP: boot artifacts, probes)",
        "listening on 127.0.0.1:PORT (HTTP: the API of the stand-in)",
    ]
    assert not [text for text in messages if "twistd" in text or "reactor" in text or "Shut Down" in text]


@pytest.mark.parametrize("number", [signal.SIGHUP, *UNUSED])
def test_signals_before_the_reactor_runs_do_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("LISTEN_PORT", "0")
    done = serve("tests.signaled_service", number)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the service has stopped" in done.stdout


@pytest.mark.parametrize("times", [1, 3])
def test_sigterm_during_the_start_exits_with_status_0(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The first handler is the console script's, the third is ours: it replaces the reactor's at once."""
    monkeypatch.setenv("LISTEN_PORT", "0")
    done = serve("tests.terminated_service", times)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("stopped" in done.stdout) == (times > 1), done.stdout
