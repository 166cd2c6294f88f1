"""A machine on which systemd is PID 1: a container."""

from __future__ import annotations

import json
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

_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "ca-certificates"),
    *("xorriso", "gpgv", "bubblewrap", "qemu-utils", "e2fsprogs", "util-linux"),
)
# What systemd needs to give units their own view of the machine.
_CAPABILITIES = "SYS_ADMIN,SYS_CHROOT,SYS_PTRACE,MKNOD,NET_ADMIN"
# Mounts are shared, as systemd makes them elsewhere: without that, units get empty credentials.
_CONTAINERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY files /srv
RUN %s
CMD ["sh", "-c", "mount --make-rshared / && exec /sbin/init"]
STOPSIGNAL SIGRTMIN+3
"""


@attrs.frozen
class Machine:
    """The running container.

    Args:
        runner: that started it.
        name: of the container.
    """

    runner: PodmanRun
    name: str

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the machine."""
        return self.runner.podman.command(*self.runner.options, "exec", "--interactive", self.name, *command)

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
        podman.run(*options, "stop", "--time=120", self.name)
        podman.run(*options, "start", self.name)
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
def running_machine(
    podman: Podman, name: str, context: Path, setup: str, suite: str = "bookworm"
) -> Iterator[Machine]:
    """Run a machine until the block ends.

    Args:
        podman: that has or makes the base.
        name: of the container.
        context: a directory, whose directory `files` is /srv of the machine.
        setup: a command of the shell, for the image; it has the network.
        suite: of Debian.
    """
    image, base = f"localhost/{name}:test", Base(suite, _PACKAGES)
    podman.make_base(base)
    (context / "Containerfile").write_text(_CONTAINERFILE % setup)
    podman.build(context, image, {}, base)
    try:
        runner = by_podman(podman, image) or missing("podman cannot run a container here")
        machine = Machine(runner, name)
        options = ("--detach", f"--name={name}", "--systemd=always", "--network=none", "--replace")
        views = ("--security-opt=seccomp=unconfined", "--security-opt=unmask=ALL")
        limits = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=10000:10000")
        started = ("run", *options, *views, *limits, f"--cap-add={_CAPABILITIES}", image)
        podman.run(*runner.options, *started)
        try:
            machine.wait_until_up()
            yield machine
        finally:
            podman.run("rm", "--force", "--time=5", name)
    finally:
        podman.remove(image)
