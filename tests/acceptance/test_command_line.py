"""The console script writes the same bytes as the service serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import os_image, run_service
from tests.cli.piping import run_piped
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal

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
        run_command(*customize, base, "--output=-"),
        run_command(*customize, base, "--minimal", "--rootfs-url", ROOTFS_URL, "--output=-"),
        run_command("extract", base, "rootfs", "--output=-"),
    ]
    assert written == list(served.values())


KARGS = (
    *("--live-karg-append", "console=ttyS0", "--live-karg-delete", "ignition.firstboot"),
    *("--live-karg-replace", "ignition.platform.id=metal=qemu"),
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base.iso"
    base.write_bytes(live_iso_with_minimal())
    return base


@pytest.fixture
def customized(base: Path) -> Path:
    """An ISO with all that a customization can have, which coreos-installer made."""
    path = base.with_name("customized.iso")
    config = base.with_name("config.ign")
    config.write_text(json.dumps(OVERRIDE))
    run_client("coreos-installer", "iso", "customize", base, *KARGS, "--live-ignition", config, "-o", path)
    return path


@pytest.mark.parametrize(
    "command", [("ignition", "show"), ("kargs", "show"), ("kargs", "show", "--default"), ("reset", "-o", "-")]
)
def test_iso_command_equals_that_of_coreos_installer(customized: Path, command: tuple[str, ...]) -> None:
    assert run_command("iso", *command, customized) == run_client(
        "coreos-installer", "iso", *command, customized
    )


def test_kernel_arguments_equal_those_of_coreos_installer(base: Path) -> None:
    theirs = run_client("coreos-installer", "iso", "customize", base, *KARGS, "-o", "-")
    assert run_command("customize", base, *KARGS, "-o", "-") == theirs


def test_coreos_installer_extracts_the_keyfiles_that_it_would_have_embedded(base: Path) -> None:
    options: list[str | Path] = []
    for name in ("eth1.nmconnection", "eth0.nmconnection"):
        base.with_name(name).write_text(f"[connection]\nid={name}\n")
        options += ["--network-keyfile", base.with_name(name)]
    ours, theirs = base.with_name("ours.iso"), base.with_name("theirs.iso")
    run_command("customize", base, *options, "-o", ours)
    run_client("coreos-installer", "iso", "customize", base, *options, "-o", theirs)
    extract = ("iso", "network", "extract")
    assert run_client("coreos-installer", *extract, ours) == run_client("coreos-installer", *extract, theirs)


def download(url: str, path: Path) -> bytes:
    run_client("curl", "--silent", "--show-error", "--fail", "--output", path, url)
    return path.read_bytes()


def run_command(*arguments: str | Path) -> bytes:
    done = run_piped(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
