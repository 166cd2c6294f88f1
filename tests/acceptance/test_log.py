"""The log of the real process, as an operator reads it after curl has failed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.assisted import run_assisted
from tests.acceptance.clients import run_client
from tests.acceptance.service import ONE_ATTEMPT, SERVE, TWISTD, os_image, run_service
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.ports import free_port
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

COMMANDS = {"twistd": (*TWISTD, "--standalone"), "serve": (*SERVE, "--standalone")}
ID = "5a3b1e00-0000-4000-8000-000000000001"
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJpbmZyYV9lbnZfaWQiOiJ4In0.c2lnbmF0dXJl"


def curl(*arguments: str) -> bytes:
    return run_client("curl", "--silent", "--show-error", *arguments)


@pytest.mark.parametrize(
    ("command", "workers"), [("twistd", "1"), ("serve", "2"), soaked("twistd", "2"), soaked("serve", "1")]
)
def test_failed_request_is_one_line_with_its_reason(tmp_path: Path, command: str, workers: str) -> None:
    environment = {"LOG_FORMAT": "journal", "LOGLEVEL": "warn", "WORKERS": workers}
    with run_service(tmp_path, [], command=COMMANDS[command], environment=environment) as service:
        typo = json.loads(curl(f"{service.url}/byid/{ID}/9.6/x86_64/ful.iso"))
        refused = json.loads(curl("--data", "x", f"{service.url}/byid/{ID}/9.6/x86_64/full.iso"))
        curl("-H", "X-Request-ID: mine", f"{service.url}/bytoken/{TOKEN}/9.6/x86_64/full.iso?api_key={TOKEN}")
        for probe in ("health", "live", "metrics"):
            curl("--fail", "--retry", "20", "--retry-delay", "1", f"{service.url}/{probe}")
    lines = [
        line
        for line in service.stdout.decode().splitlines()
        if "access#" in line and "503 unavailable" not in line  # /health of a worker that is still starting
    ]
    files = "full.iso, minimal.iso, disconnected.iso, config.iso, SHA256SUMS"
    no_uuid = "the identifier of the infra-env in the path is not a lower-case UUID"
    assert [re.sub(r"\[(worker \d: )?access#", "[access#", line) for line in lines] == [
        f"<4>[access#warn] {request} to 127.0.0.1: {reason} (id {identifier})"
        for request, reason, identifier in (
            (
                f"GET /byid/{ID}/9.6/x86_64/ful.iso",
                f"404 not-found: not found; the files are {files}",
                typo["id"],
            ),
            (
                f"POST /byid/{ID}/9.6/x86_64/full.iso",
                "405 method-not-allowed: method not allowed; use GET or HEAD",
                refused["id"],
            ),
            ("GET /bytoken/***/9.6/x86_64/full.iso?***", f"404 not-found: {no_uuid}", "mine"),
        )
    ]


def test_log_file_of_twistd_has_the_lines_of_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    command = (*TWISTD[:-1], f"--logfile={path}", TWISTD[-1], "--standalone")
    with run_service(tmp_path, [], command=command, environment={"WORKERS": "2"}) as service:
        curl(f"{service.url}/nothing")
    assert service.output == b""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line.get("worker") for line in lines} == {None, 0, 1}
    assert [line["path"] for line in lines if line.get("status") == 404] == ["/nothing"]


def test_probes_are_logged_at_debug(tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=COMMANDS["serve"], environment={"LOGLEVEL": "debug"}) as service:
        curl("--fail", f"{service.url}/live")
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    assert [line["level"] for line in lines if line.get("handler") == "/live"] == ["debug"]


def test_health_says_why_the_service_is_not_ready(tmp_path: Path) -> None:
    """And whether it is shutting down; each failed probe has a line."""
    missing = os_image(tmp_path / "x", "9.6") | {
        "url": f"http://127.0.0.1:{free_port()}/x.iso?signature=s3cr3t"
    }
    environment = {"DRAIN_DELAY": "1000", "LOG_FORMAT": "journal", **ONE_ATTEMPT}
    command = COMMANDS["serve"]
    with run_service(tmp_path, [missing], command=command, environment=environment, probe="/live") as service:
        service.wait_for("is (failed)")
        reason = json.loads(curl(f"{service.url}/health"))["detail"]
        service.process.terminate()
        service.wait_for("(shutting down)")
        assert json.loads(curl(f"{service.url}/health"))["detail"] == "this service is shutting down"
        service.process.terminate()
    assert re.fullmatch(
        r"0 of 1 base image is ready; rhcos-full-iso-9\.6-x86_64\.iso is failed: .*refused.*; see /images",
        reason,
    )
    log = service.output.decode()
    assert (
        len(re.findall(r"^<4>\[access#warn\] GET /health to .*: 503 unavailable: ", log, re.MULTILINE)) == 2
    )
    assert "s3cr3t" not in log + reason


@pytest.mark.parametrize("command", [SERVE, TWISTD])
def test_log_has_no_lines_of_libraries(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Neither of twistd, nor of the connections to assisted-service, which each have a factory."""
    iso = tmp_path / "base.iso"
    iso.write_bytes(build_live_iso())
    (tmp_path / "assisted").mkdir()
    with run_assisted(tmp_path / "assisted") as assisted:
        infra_env_id = assisted.register("9.6", {"ignition": {"version": "3.2.0"}})
        environment = {**assisted.environment, "LOGLEVEL": "debug"}
        images = [os_image(iso, "9.6")]
        with run_service(tmp_path, images, command=command, environment=environment) as service:
            url = f"{service.url}/byid/{infra_env_id}/9.6/x86_64/full.iso"
            assert curl("--fail", "--retry", "20", "--retry-delay", "1", "--range", "0-99", url)
            assert assisted.rounds == 1
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    assert [line for line in lines if line.get("infra_env") == infra_env_id]
    assert {line["logger"].partition(".")[0] for line in lines} == {"access", "image_service"}
    assert not [line for line in lines if re.search(r"factory|object at 0x|<twisted", line["message"])]
