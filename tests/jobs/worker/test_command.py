"""Command lines that a worker refuses."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.cli import build_parser, main
from image_service.jobs.worker.requests import ServerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def restored_handler() -> Iterator[None]:
    """Restore the handler of the signal that a worker handles first."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_other_commands_need_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    build_parser()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://host", ServerAddress("host", 80)),
        ("https://host/", ServerAddress("host", 443, is_tls=True)),
        ("https://host:8443/jobs/", ServerAddress("host", 8443, is_tls=True, prefix="/jobs")),
        ("http://[::1]:8091", ServerAddress("::1", 8091)),
        ("unix:/run/jobs.sock", ServerAddress("localhost", socket_path=Path("/run/jobs.sock"))),
    ],
    ids=["http", "https", "prefix", "IPv6", "unix"],
)
def test_server_is_a_url_or_a_socket(text: str, expected: ServerAddress) -> None:
    assert ServerAddress.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["host:80", "ftp://host", "unix:jobs.sock", "https://u@h", "http://h?q", "http://"]
)
def test_other_servers_are_invalid(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--server", text]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--types=depsolve", "--slots=0", "--tenant=org-1", "--scratch-bytes=x"])
def test_invalid_values(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--server", "http://host", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_all_faults_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLKIT", str(tmp_path / "no-toolkit"))
    (tmp_path / "file").touch()
    options = {
        "--server": "https://host",
        "--token-file": tmp_path / "no-token",
        "--ca-file": tmp_path / "no-ca",
        "--scratch-dir": tmp_path / "file",
        "--cache-dir": tmp_path / "file",
        "--types": "upload",
    }
    status = main(["worker", *(f"{name}={value}" for name, value in options.items())])
    errors = capsys.readouterr().err
    assert status == 78
    expected = ("--types upload", "--token-file", "--ca-file", "TOOLKIT", "--scratch-dir", "--cache-dir")
    assert [name for name in expected if f"{name}" not in errors] == []


def test_program_that_is_no_toolkit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLKIT", "false")
    assert main(["worker", "--server=http://host", f"--scratch-dir={tmp_path}"]) == 78
    assert "--version fails" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
