"""Builds the container image without a registry, and runs it by whichever runtime works on this machine."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import ssl
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.clients import missing, needs_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANY_USER = "54321:0"  # OpenShift picks the uid; the group is always 0
_IN_CHROOT = """
set -e
mount --bind "$1" "$1"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount -t tmpfs -o mode=0775 tmpfs "$1/data"
mount -o remount,bind,ro "$1"
cd "$1"
root=$1 user=$2
shift 2
exec chroot --userspec="$user" --groups= "$root" "$@"
"""


@attrs.frozen
class Base:
    """A small Debian, made from the package archive.

    Args:
        suite: of the archive.
        packages: beside the essential ones.
    """

    suite: str
    packages: Sequence[str]

    @property
    def image(self) -> str:
        """The name of its image."""
        digest = hashlib.sha256(" ".join(self.packages).encode()).hexdigest()
        return f"localhost/base:{self.suite}-{digest[:12]}"


BASE = Base("trixie", ("python3", "python3-pip", "ca-certificates"))
"""The base of the container image."""


@attrs.frozen
class Podman:
    """podman with a storage directory of its own."""

    storage: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """Return a podman command line."""
        places = ("--root", self.storage / "images", "--runroot", self.storage / "run")
        return list(map(str, (needs_client("podman"), *places, "--cgroup-manager=cgroupfs", *arguments)))

    def as_root(self, *command: str) -> list[str]:
        """Return the command line that runs a command as root, at least of a user namespace."""
        return [*command] if os.geteuid() == 0 else self.command("unshare", *command)

    def run(self, *arguments: str | Path) -> str:
        """Run podman to its end; fail the test with its output if it fails."""
        return finish(self.command(*arguments))

    def mount(self, image: str) -> str:
        """Yield the directory with the image's files."""
        return finish(self.as_root(*self.command("image", "mount", image)))

    def remove(self, image: str) -> None:
        """Remove an image and its build containers."""
        finish(self.as_root(*self.command("image", "umount", "--force", image)))
        self.run("image", "rm", "--force", image)
        self.run("image", "prune", "--force")

    def has(self, image: str) -> bool:
        """Return True if the storage has an image."""
        found = subprocess.run(self.command("image", "exists", image), capture_output=True, check=False)
        return found.returncode == 0

    def make_base(self, base: Base = BASE) -> None:
        """Create a base, once per storage."""
        if self.has(base.image):
            return
        with TemporaryDirectory() as directory:
            archive = Path(directory) / "base.tar"
            options = ("--variant=minbase", f"--include={','.join(base.packages)}", "--quiet")
            made = subprocess.run(
                [needs_client("mmdebstrap"), *options, base.suite, archive], capture_output=True, check=False
            )
            if made.returncode != 0:
                missing(f"no base image can be made: {made.stderr.decode(errors='replace')}")
            self.run("import", archive, base.image)

    def build(self, context: Path, image: str, arguments: Mapping[str, str], base: Base = BASE) -> None:
        """Build an image on a base, with this machine's access to its package registry."""
        with TemporaryDirectory() as directory:
            settings = pip_settings()
            pip_conf = Path(directory) / "pip.conf"
            with pip_conf.open("w") as file:
                settings.write(file)
            mounts = {str(pip_conf): "/etc/pip.conf"} | {path: path for path in trusted_files(settings)}
            volumes = [f"--volume={source}:{target}:ro" for source, target in mounts.items()]
            options = [
                "--isolation=chroot",
                "--network=host",
                "--layers=false",
                "--format=docker",
                f"--build-arg=BASE_IMAGE={base.image}",
            ]
            options += [f"--build-arg={name}={value}" for name, value in arguments.items()]
            self.run("build", *options, *volumes, "--tag", image, context)

    def inspect(self, image: str) -> dict[str, Any]:
        """Return what podman says about an image."""
        found: list[dict[str, Any]] = json.loads(self.run("image", "inspect", image))
        return found[0]


def finish(command: list[str]) -> str:
    """Run a command to its end; fail the test with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def pip_settings() -> ConfigParser:
    """Return this machine's pip settings: configuration files, overridden by the environment."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings = ConfigParser(interpolation=None)
    for line in sorted(listing.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.replace(":env:", "global", 1).partition("=")
        section, _, option = name.partition(".")
        settings.read_dict({section: {option: ast.literal_eval(value)}})
    return settings


def trusted_files(settings: ConfigParser) -> set[str]:
    """Return the certificate files that pip's settings and this machine's trust store name."""
    named = {value for section in settings.values() for value in section.values()}
    named.add(ssl.get_default_verify_paths().cafile or "")
    return {path for path in named if path.startswith("/") and Path(path).exists()}


@attrs.frozen
class PodmanRun:
    """Runs commands in an image by ``podman run``.

    Args:
        podman: the storage that has the image.
        image: its name.
        options: podman's, such as the runtime.
        confined: further options of ``podman run``, which go before those of this class.
    """

    podman: Podman
    image: str
    options: Sequence[str] = ()
    confined: Sequence[str] = ()

    def command(
        self, arguments: Sequence[str], variables: Mapping[str, str], entrypoint: str | None = None
    ) -> list[str]:
        """Return the command line of a container with a read-only root under an arbitrary uid.

        Args:
            arguments: of the entry point, instead of those of the image.
            variables: of the environment, in addition to those of the image.
            entrypoint: a program instead of that of the image.
        """
        environment = [f"--env={name}={value}" for name, value in variables.items()]
        # The limits are given because podman's own may be more than this machine lets it set.
        limits = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
        read_only = ("--read-only", "--read-only-tmpfs=false")
        confined = ("--rm", *read_only, "--network=host", f"--user={ANY_USER}", *limits, *self.confined)
        instead = [f"--entrypoint={entrypoint}"] if entrypoint else []
        started = ("run", *confined, *environment, *instead, self.image, *arguments)
        return self.podman.command(*self.options, *started)


@attrs.frozen
class ChrootRun:
    """Runs commands in an image by bind mounts and chroot.

    Args:
        podman: the storage that has the image.
        image: its name.
    """

    podman: Podman
    image: str

    def command(
        self, arguments: Sequence[str], variables: Mapping[str, str], entrypoint: str | None = None
    ) -> list[str]:
        """Return the command line of a container, as ``PodmanRun.command`` does."""
        root, config = self.podman.mount(self.image), self.podman.inspect(self.image)["Config"]
        environment = [*config["Env"], *(f"{name}={value}" for name, value in variables.items())]
        own = [*config["Entrypoint"], *(arguments or config["Cmd"])]
        words = [entrypoint, *arguments] if entrypoint else own
        shell = ("unshare", "--mount", "sh", "-c", _IN_CHROOT, "sh", root, ANY_USER)
        return self.podman.as_root(*shell, "env", "--ignore-environment", *environment, *words)


def by_podman(podman: Podman, image: str) -> PodmanRun | None:
    """Return what runs an image by podman, with whichever runtime works here."""
    runners = (PodmanRun(podman, image), PodmanRun(podman, image, ["--runtime=runc"]))
    return next(filter(works, runners), None)


def works(runner: PodmanRun | ChrootRun) -> bool:
    """Return True if this machine can run containers in this way."""
    tried = subprocess.run(runner.command([], {}, entrypoint="true"), capture_output=True, check=False)
    return tried.returncode == 0
