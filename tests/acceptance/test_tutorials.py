"""The tutorials, walked as they are printed; servers of the tests stand for hosts of the internet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.boot_iso import make_boot_iso
from tests.acceptance.clients import needs_client
from tests.acceptance.releases import Release, tell
from tests.acceptance.service import CHECKOUT
from tests.acceptance.walk import Step, Walk, read_steps
from tests.ports import free_port
from tests.server.catalog.origin import Origin, running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

PORTS = (8000, 8080, 8081, 8090)
FOREGROUND = {
    r"^make run": "status page",
    r"^make jobs": "the job engine answers",
    r"image-service serve ": "serving at",
    "sushy-emulator": "Running on",
}
MAKE = """\
make() {
    case $1 in
        run) arguments="serve --standalone" ADMIN_LISTEN=$RUN_ADMIN_LISTEN ;;
        jobs) arguments=jobs DATA_DIR=data/jobs ADMIN_LISTEN=$JOBS_ADMIN_LISTEN ;;
    esac
    mkdir -p "${DATA_DIR:=data}"
    export DATA_DIR ADMIN_LISTEN
    exec .venv/bin/image-service $arguments
}
"""
"""What the Makefile does, without an installation."""


def steps_of(name: str) -> list[Step]:
    return list(read_steps(CHECKOUT / "docs" / "tutorials" / f"{name}.md"))


def make_walk(directory: Path, preamble: str = "", **changes: str) -> Walk:
    """Make a directory like a checkout with its virtual environment, and ports of its own."""
    binaries = directory / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name, module in {
        "image-service": "image_service.cli",
        "image-toolkit": "image_service.toolkit",
    }.items():
        write_program(binaries / name, f'exec "{sys.executable}" -m {module} "$@"')
    write_program(binaries / "pip", "mkdir -p wheels")  # what the tutorials install is installed
    (binaries / "sushy-emulator").symlink_to(Path(sys.executable).with_name("sushy-emulator"))
    ports = {port: free_port() for port in PORTS}
    others = {f"{before}{port}": f"{before}{ports[port]}" for port in PORTS for before in (":", "--port ")}
    environment = {
        "HOME": str(directory),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "LISTEN_PORT": str(ports[8080]),
        "RUN_ADMIN_LISTEN": f"127.0.0.1:{ports[8081]}",
        "JOBS_ADMIN_LISTEN": f"127.0.0.1:{free_port()}",
        "JOBS_LISTEN": f"unix:{{DATA_DIR}}/jobs.sock,127.0.0.1:{free_port()}",
        "STANDALONE_LISTEN": f"127.0.0.1:{ports[8090]}",
    }
    return Walk(directory, environment, {**others, **changes}, MAKE + preamble, FOREGROUND)


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        yield server


def test_commands_and_outputs_are_read(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "```console\n$ cat <<'END'\n$ no command\nEND\nno command\n$ echo a\na\n```\n"
        "End it with Ctrl-C, and in another terminal:\n\n```console\n$ echo b\n```\n"
    )
    assert list(read_steps(document)) == [
        Step("cat <<'END'\n$ no command\nEND", "no command", 0, ends_foreground=False),
        Step("echo a", "a", 0, ends_foreground=False),
        Step("echo b", "", 1, ends_foreground=True),
    ]


def test_failing_command_and_other_output_are_seen(tmp_path: Path) -> None:
    walk = make_walk(tmp_path)
    walk.take([Step("echo one; echo two", "…two", 0, ends_foreground=False)])
    for command, output in (("false", ""), ("echo one", "two"), ("exit 0", "")):
        with pytest.raises(AssertionError, match=command):
            walk.take([Step(command, output, 0, ends_foreground=False)])


@pytest.mark.soak
def test_first_boot(tmp_path: Path, origin: Origin) -> None:
    for client in ("curl", "jq", "qemu-system-x86_64"):
        needs_client(client)
    make_boot_iso(tmp_path / "boot.iso")
    tell(origin, Release("44.1", (tmp_path / "boot.iso").read_bytes(), {}))
    # KVM may be there and fail.
    changes = {"https://builds.coreos.fedoraproject.org": origin.url(""), "-accel kvm ": ""}
    make_walk(tmp_path, **changes).take(steps_of("first-boot"))


def test_bmc(tmp_path: Path) -> None:
    needs_client("curl")
    make_walk(tmp_path).take(steps_of("bmc"))


@pytest.mark.soak
def test_disconnected(tmp_path: Path, origin: Origin) -> None:
    for client in ("curl", "jq", "coreos-installer"):
        needs_client(client)
    tell(origin, Release.complete("44.1"))
    # Nobody but Fedora signs its ISOs.
    insecure = 'coreos-installer() { command coreos-installer "$@" --insecure; }\n'
    # One directory is both sides.
    changes = {
        "https://builds.coreos.fedoraproject.org": origin.url(""),
        "python3 -m venv .venv": "test -x .venv/bin/pip",
    }
    make_walk(tmp_path, insecure, **changes).take(steps_of("disconnected"))


@pytest.mark.soak
def test_disk_image(tmp_path: Path) -> None:
    for client in ("qemu-img", "debugfs"):
        needs_client(client)
    make_walk(tmp_path).take(steps_of("disk-image"))
