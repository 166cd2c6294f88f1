"""A machine on which systemd is PID 1: a container with the wheel, installed as docs/package.md says."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.clients import missing
from tests.jobs.running_role import wait_until
from tests.packaging.containers import Base, Podman, PodmanRun, by_podman, finish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PYTHON = "/opt/image-service/bin/python"
_IMAGE = "localhost/image-service-systemd:test"
_NAME = "image-service-systemd-test"
_BASE = Base(
    "bookworm",  # whose systemd still starts where the machine has the first version of cgroups
    (
        *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "ca-certificates"),
        *("xorriso", "gpgv", "bubblewrap", "qemu-utils", "e2fsprogs", "util-linux"),
    ),
)
# What systemd needs to give units their own view of the machine.
_CAPABILITIES = "SYS_ADMIN,SYS_CHROOT,SYS_PTRACE,MKNOD,NET_ADMIN"
# Mounts are shared, as systemd makes them elsewhere: without that, units get empty credentials.
_CONTAINERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY *.whl /srv/
RUN python3 -m venv /opt/image-service \\
    && /opt/image-service/bin/pip install --quiet --no-cache-dir "$(ls /srv/*.whl)[jobs]" \\
    && /opt/image-service/bin/image-service examples /srv/conf
CMD ["sh", "-c", "mount --make-rshared / && exec /sbin/init"]
STOPSIGNAL SIGRTMIN+3
"""


@attrs.frozen
class Machine:
    """The running container.

    Args:
        runner: that started it.
    """

    runner: PodmanRun

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the machine."""
        return self.runner.podman.command(*self.runner.options, "exec", "--interactive", _NAME, *command)

    def run(self, *command: str) -> str:
        """Run a command to its end; fail the test with its output if it fails."""
        return finish(self.command(*command))

    def status(self, *command: str) -> int:
        """Run a command to its end; return its exit status."""
        return subprocess.run(self.command(*command), check=False, capture_output=True).returncode

    def write(self, path: str, text: str) -> None:
        """Write a file, and the directories above it."""
        script = 'mkdir --parents "$(dirname "$1")" && cat >"$1"'
        writing = self.command("sh", "-c", script, "sh", path)
        subprocess.run(writing, check=True, input=text, text=True)

    def show(self, unit: str, *properties: str) -> list[str]:
        """Return properties of a unit, in the order in which they are given."""
        shown = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        values = dict(line.split("=", 1) for line in shown.splitlines())
        return [values[name] for name in properties]

    def journal(self, unit: str, *options: str) -> list[Mapping[str, Any]]:
        """Return what the journal has of a unit, oldest first."""
        return [
            json.loads(line)
            for line in self.run("journalctl", "--unit", unit, "--output=json", *options).splitlines()
        ]

    def messages(self, unit: str, *options: str) -> str:
        """Return the messages of a unit in the journal."""
        return "\n".join(str(entry["MESSAGE"]) for entry in self.journal(unit, *options))

    def wait_for(self, unit: str, **properties: str) -> None:
        """Wait until properties of a unit have values."""
        names, values = list(properties), list(properties.values())
        wait_until(lambda: self.show(unit, *names) == values, lambda: self.explain(unit, *names))

    def explain(self, unit: str, *properties: str) -> str:
        """Return properties and the journal of a unit."""
        return f"{self.show(unit, *properties)}\n{self.messages(unit)}"

    def reboot(self) -> None:
        """Stop the machine in order, and start it."""
        podman, options = self.runner.podman, self.runner.options
        podman.run(*options, "stop", "--time=120", _NAME)
        podman.run(*options, "start", _NAME)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until systemd has started all units."""
        asked = self.command("systemctl", "is-system-running", "--wait")
        up = "running"
        wait_until(
            lambda: subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() == up,
            lambda: (
                subprocess.run(
                    self.command("systemctl", "--failed"), check=False, capture_output=True, text=True
                ).stdout
            ),
        )


@contextmanager
def running_machine(podman: Podman, wheel: Path, directory: Path) -> Iterator[Machine]:
    """Run a machine with the wheel until the block ends.

    Args:
        podman: that has or makes the base.
        wheel: to install.
        directory: for the context of the build.
    """
    podman.make_base(_BASE)
    shutil.copy(wheel, directory)
    (directory / "Containerfile").write_text(_CONTAINERFILE)
    podman.build(directory, _IMAGE, {}, _BASE)
    try:
        runner = by_podman(podman, _IMAGE) or missing("podman cannot run a container here")
        machine = Machine(runner)
        options = ("--detach", f"--name={_NAME}", "--systemd=always", "--network=none", "--replace")
        views = ("--security-opt=seccomp=unconfined", "--security-opt=unmask=ALL")
        limits = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=10000:10000")
        started = ("run", *options, *views, *limits, f"--cap-add={_CAPABILITIES}", _IMAGE)
        podman.run(*runner.options, *started)
        try:
            machine.wait_until_up()
            yield machine
        finally:
            podman.run("rm", "--force", "--time=5", _NAME)
    finally:
        podman.remove(_IMAGE)
