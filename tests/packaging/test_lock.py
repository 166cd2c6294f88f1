"""The locks of containers and packages: complete, with hashes, and without names of hosts."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_ALWAYS = ("postgresql", "s3")
EXTRAS = {"requirements.lock": _ALWAYS, "requirements-jobs.lock": ("jobs", *_ALWAYS)}
"""Of the container, without and with the jobs role."""
LOCKS = (*EXTRAS, "requirements-toolkit.lock", "requirements-build.lock")
AUDIT = CHECKOUT / ".ci" / "audit"


def locked(name: str) -> dict[str, str]:
    """Return the versions by name."""
    text = (CHECKOUT / name).read_text()
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;]+)", text, re.MULTILINE))


def required() -> dict[str, list[Requirement]]:
    """Return what each lock is made of."""
    setup, project = ConfigParser(), tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    setup.read(CHECKOUT / "setup.cfg")
    groups = project["dependency-groups"]
    release = [line for line in groups["release"] if isinstance(line, str)]
    always, by_extra = setup["options"]["install_requires"], setup["options.extras_require"]
    lines = {
        name: "".join([always, *map(by_extra.__getitem__, extras)]).strip().splitlines()
        for name, extras in EXTRAS.items()
    }
    toolkit = ConfigParser()
    toolkit.read(CHECKOUT / ".ci/toolkit/setup.cfg")
    lines["requirements-toolkit.lock"] = toolkit["options"]["install_requires"].strip().splitlines()
    lines["requirements-build.lock"] = [*groups["build"], *release]
    return {
        name: [Requirement(line) for line in found if not line.startswith("#")]
        for name, found in lines.items()
    }


def with_dependencies(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of the packages, and of all that they need in this environment."""
    found: set[str] = set()
    waiting = [(each, extra) for each in requirements for extra in ("", *each.extras)]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found.add(canonicalize_name(requirement.name))
        for line in requires(requirement.name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                needed.marker = None
                waiting += [(needed, each) for each in ("", *needed.extras)]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_a_valid_version_of_each_requirement(name: str) -> None:
    versions = locked(name)
    for requirement in required()[name]:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_all_dependencies_of_its_requirements(name: str) -> None:
    try:
        assert with_dependencies(required()[name]) <= locked(name).keys()
    except PackageNotFoundError as error:
        pytest.fail(f"{error} is not installed: run `make test`")


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_hashes_and_names_no_host(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked(name))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    assert not re.search(r"://|^ *-[^ -]|^ *--(?!hash=)", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-toolkit.lock"])
def test_lock_has_the_versions_of_the_jobs_role(name: str) -> None:
    """The package of the jobs role adds packages to the environment of the service."""
    assert locked(name).items() <= locked("requirements-jobs.lock").items()


def test_build_group_equals_the_build_system() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["build"] == project["build-system"]["requires"]


def test_container_installs_nothing_without_hashes() -> None:
    commands = (CHECKOUT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"-m pip [^&;}]*? (?:install|wheel) [^&;}]*", commands)
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-index --no-deps" in each for each in installs)


@pytest.mark.parametrize(
    ("printed", "status", "exits", "says"),
    [
        ("No known vulnerabilities found", 0, 0, "no known vulnerabilities"),
        ("twisted Dependency not found on PyPI and could not be audited: twisted (1)", 0, 0, "NOT CHECKED"),
        ("requests.exceptions.ConnectionError: no route", 1, 0, "NOT CHECKED"),
        ("Found 1 known vulnerability in 1 package\ntwisted 1 PYSEC-1", 1, 1, "known vulnerabilities"),
        ("Found 2 known vulnerabilities in 1 package\nx could not be audited", 1, 1, "known vulnerabilities"),
    ],
)
def test_audit_fails_only_if_a_vulnerability_is_known(
    tmp_path: Path, printed: str, status: int, exits: int, says: str
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit {status}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([AUDIT, "some.lock"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == exits
    assert says in done.stderr.splitlines()[-1]
    assert printed in done.stderr
