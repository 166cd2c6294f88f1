"""The commands in the documents work when they are copied in order, with curl, against the sample."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from image_service.server.standalone.service import SAMPLE_ID
from tests.acceptance.clients import needs_client
from tests.acceptance.service import CHECKOUT, INFRA_ENVS, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

EXAMPLE_HOST = "images.example.com"  # commands for it cannot be run


def commands_of(document: Path) -> str:
    """Return the indented blocks that call curl, as one script."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", document.read_text(), re.MULTILINE)
    runnable = [block for block in blocks if "curl -" in block and EXAMPLE_HOST not in block]
    variables = [block for block in blocks if re.match(r"\n* {4}\w+=http://(?:localhost|127)", block)]
    return "".join(dict.fromkeys((*variables, *runnable)))


def run_commands(document: str, service: Service, directory: Path) -> str:
    script = commands_of(CHECKOUT / "docs" / document)
    assert script.count("curl -") >= 8
    for documented, url in (("localhost:8080", service.url), ("127.0.0.1:8090", service.api_url)):
        script = script.replace(documented, urlsplit(url).netloc)
    needs_client("curl")
    bash = (needs_client("bash"), "-e", "-u", "-o", "pipefail", "-x", "-c", script)
    ran = subprocess.run(bash, cwd=directory, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture
def sample_service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "service").mkdir()
    with run_service(tmp_path / "service", []) as service:
        yield service


def test_commands_of_the_http_page_work(sample_service: Service, tmp_path: Path) -> None:
    # Not the commands: on a busy machine, a first request may be told to come again.
    sample_service.get_image(f"/byid/{SAMPLE_ID}/sample/x86_64/full.iso")
    (tmp_path / "client").mkdir()
    output = run_commands("http.md", sample_service, tmp_path / "client")
    for checked in ("-discovery.iso: OK", "\nfull.iso: OK", "\nminimal.iso: OK"):
        assert checked in output


def test_commands_of_the_standalone_page_work(sample_service: Service, tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    output = run_commands("standalone.md", sample_service, tmp_path / "client")
    assert '"network_keyfiles": {"eth0.nmconnection"' in output


def test_infra_env_is_dated_by_the_clock_of_the_host(sample_service: Service) -> None:
    infra_env = sample_service.register("4.17", {"ignition": {"version": "3.2.0"}})
    described = sample_service.ask_api(f"{INFRA_ENVS}/{infra_env}").json()
    updated_at = datetime.strptime(described["updated_at"], "%Y-%m-%dT%H:%M:%S%z")
    assert abs(datetime.now(UTC) - updated_at) < timedelta(hours=1)
