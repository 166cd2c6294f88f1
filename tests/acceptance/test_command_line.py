"""The console script writes the same bytes as the service serves."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import os_image, run_service
from tests.coreos.miniso_builder import live_iso_with_minimal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

BASE_URL = "http://192.0.2.1"
ROOTFS_URL = f"{BASE_URL}/boot-artifacts/4.17/x86_64/rootfs.img"
ARGUMENTS = ["console=ttyS0", 'ip="192.0.2.1::192.0.2.254"']
OVERRIDE = {"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}


def test_command_line_writes_the_bytes_that_the_service_serves(tmp_path: Path) -> None:
    base, config = tmp_path / "base.iso", tmp_path / "config.ign"
    base.write_bytes(live_iso_with_minimal())
    variables = {"IMAGE_SERVICE_BASE_URL": BASE_URL}
    with run_service(tmp_path, [os_image(base, "4.17")], environment=variables) as service:
        infra_env_id = service.register("4.17", OVERRIDE, ARGUMENTS)
        config.write_bytes(service.ignition_config(infra_env_id))
        served = {
            path: download(f"{service.url}{path}", tmp_path / "served")
            for path in (
                f"/byid/{infra_env_id}/4.17/x86_64/full.iso",
                f"/byid/{infra_env_id}/4.17/x86_64/minimal.iso",
                "/boot-artifacts/4.17/x86_64/rootfs.img",
            )
        }
    customize = [
        "customize",
        f"--ignition={config}",
        *(f"--karg-append={argument}" for argument in ARGUMENTS),
    ]
    written = [
        run_command(*customize, base),
        run_command(*customize, base, "--minimal", "--rootfs-url", ROOTFS_URL),
        run_command("extract", base, "rootfs"),
    ]
    assert written == list(served.values())


def download(url: str, path: Path) -> bytes:
    run_client("curl", "--silent", "--show-error", "--fail", "--output", path, url)
    return path.read_bytes()


def run_command(*arguments: str | Path) -> bytes:
    command = [sys.executable, "-m", "image_service.cli", *map(str, arguments), "--output=-"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
