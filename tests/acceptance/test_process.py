"""Start, output, files and exit of the process, as an operator sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import SERVE, TWISTD, run_service

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

STANDALONE = {"twistd": (*TWISTD, "--standalone"), "image-service": (*SERVE, "--standalone")}


@pytest.mark.parametrize("command", STANDALONE)
def test_sigterm_exits_with_0_and_leaves_only_data_dir(command: str, tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=STANDALONE[command]) as service:
        assert service.get("/live").status == 200
    assert {path.name for path in tmp_path.iterdir()} == {"data", "stdout", "stderr"}


def test_log_is_json_lines_on_stdout_only(tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=STANDALONE["image-service"]) as service:
        service.get("/nothing")
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    assert [line for line in lines if line.get("status") == 404]
    assert service.output == service.stdout


def test_printed_url_serves_the_sample_without_os_images(tmp_path: Path) -> None:
    image = tmp_path / "image.iso"
    with run_service(tmp_path, [], command=STANDALONE["image-service"]) as service:
        url = service.wait_for(r'curl [^"]*?(http://[^"\s]+)')
        run_client("curl", "--silent", "--show-error", "--fail", "--output", image, url)
    config = json.loads(run_client("coreos-installer", "iso", "ignition", "show", image))
    assert config["ignition"]["version"].startswith("3.")
    reset = run_client("coreos-installer", "iso", "reset", "-o", "-", image)
    assert reset == (tmp_path / "data" / "sample.iso").read_bytes()
