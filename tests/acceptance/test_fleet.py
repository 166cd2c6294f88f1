"""``image-service loadtest --profile ztp-3500``, with fewer hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.load]

SMALL = ("--clients=12", "--infra-envs=2", "--ranges=20", "--start=1s", "--outage=1s", "--duration=10m")
LARGE = ("--clients=350", "--infra-envs=70", "--start=1m", "--duration=3h")
EVENTS = ["outage of assisted-service", "another base image", "rolling restart"]
WRONG_SPLICE = """
from image_service.tools.loadtest.fleet import expected_images
right = expected_images.make_config
expected_images.make_config = lambda infra_env, answer: right(infra_env, answer + 1000)
"""


def run_fleet(directory: Path, *options: str, before: str = "") -> tuple[int, str, dict[str, Any]]:
    """Run a fleet, after a statement in its process; return status, output and report."""
    code = f"{before}\nimport sys\nfrom image_service.cli import main\nsys.exit(main())"
    arguments = ("loadtest", "--profile=ztp-3500", f"--report={directory}", *options)
    environment = os.environ | {"PYTHONSAFEPATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.stderr == ""
    return ran.returncode, ran.stdout, json.loads((directory / "report.json").read_text())


@pytest.mark.parametrize("options", [pytest.param(SMALL, id="12 hosts"), soaked(LARGE, id="350 hosts")])
def test_every_host_of_a_fleet_gets_the_bytes_of_its_version(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status, output, report = run_fleet(tmp_path / "report", *options)
    assert status == 0, output
    fleet = report["fleet"]
    assert fleet["failed_hosts"] == 0
    assert report["verification"]["faults"] == {}
    assert report["timings"]["range"]["count"] == fleet["hosts"] * fleet["ranges"]
    assert [name for name, *_ in fleet["events"]] == EVENTS
    assert fleet["bases_read"] == 2
    assert 0 < fleet["upstream_calls"] < fleet["hosts"] * fleet["ranges"] / 10
    assert f"of {fleet['hosts']} read" in output


def test_hosts_of_a_fleet_read_at_their_rate(tmp_path: Path) -> None:
    status, output, report = run_fleet(tmp_path / "report", *SMALL, "--rate=1MB/s")
    assert status == 0, output
    reads, content = report["timings"]["range"], report["counts"]["bytes"]
    assert reads["mean_seconds"] > 0.9 * content / reads["count"] / 1_000_000


@pytest.mark.soak
def test_other_bytes_than_the_spliced_ones_fail_the_load_test(tmp_path: Path) -> None:
    status, output, report = run_fleet(tmp_path / "report", *SMALL, before=WRONG_SPLICE)
    assert status == 1
    assert report["verification"]["faults"]["bytes-differ"] > 0
    assert "verification failed: bytes-differ" in output
