"""The wheel, built once for all tests that inspect or install it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import needs_client
from tests.packaging.containers import Podman

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[2]
PUBLISHED = "https://image-service.example.com"
"""Where the rules for Prometheus suppose docs/."""


def bare_environment() -> dict[str, str]:
    """Return an environment without the variables that would find the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def install_wheel(wheel: Path, environment: Path, extra: str = "") -> Path:
    """Install a wheel with its requirements into a new environment; return its directory of programs.

    Args:
        wheel: to install.
        environment: the directory to make.
        extra: whose requirements are installed too, in brackets.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    target = environment / "bin" / "python"
    options = ("--quiet", "--no-compile")  # most of the time is the compiler's, and most modules stay unused
    install = (sys.executable, "-m", "pip", "--python", target, "install", *options, f"{wheel}{extra}")
    subprocess.run(install, check=True, env=bare_environment())
    return environment / "bin"


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """Return the files of the repository that exist, with those that are not committed yet."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("not a Git checkout: which files belong to the sources is not known")
    listing = (
        needs_client("git"),
        "-C",
        CHECKOUT,
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    found = subprocess.run(listing, check=True, capture_output=True, text=True)
    names = sorted(set(found.stdout.split("\0")) - {""})
    return [name for name in names if (CHECKOUT / name).exists()]


def copy_sources(names: list[str], directory: Path) -> Path:
    """Copy files of the repository: a build writes into its tree."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, directory / name, follow_symlinks=False)
    return directory


@pytest.fixture(scope="session")
def sources(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tracked, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with this environment's setuptools, without downloads."""
    dist = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, sources)
    subprocess.run(build, check=True, capture_output=True)
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def toolkit_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the toolkit as `make toolkit` does."""
    needs_client("git")
    dist = tmp_path_factory.mktemp("toolkit")
    environment = bare_environment()
    environment["PATH"] = f"{sys.exec_prefix}/bin:{environment['PATH']}"
    subprocess.run([CHECKOUT / ".ci/toolkit/build", dist], check=True, env=environment, capture_output=True)
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def podman() -> Podman:
    storage = CHECKOUT / ".cache" / "containers"
    storage.mkdir(parents=True, exist_ok=True)
    return Podman(storage)


@pytest.fixture(scope="session")
def jobs_image(podman: Podman, sources: Path) -> Iterator[str]:
    """Build the image of the jobs role and its workers, as docs/container.md says."""
    image = "localhost/image-service-jobs:test"
    podman.make_base()
    podman.build(sources, image, {"LOCK": "requirements-jobs.lock", "PACKAGES": "e2fsprogs qemu-utils"})
    yield image
    podman.remove(image)
