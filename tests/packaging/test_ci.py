"""The gate finds the interpreters that unit tests run with; CI has each version that the package promises."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import yaml

from tests.packaging.conftest import CHECKOUT

if TYPE_CHECKING:
    from pathlib import Path


def add_interpreter(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_one_interpreter_of_each_version_is_found(tmp_path: Path) -> None:
    programs, home = tmp_path / "bin", tmp_path / "home"
    expected = {
        "3.11": add_interpreter(programs / "python3.11", "echo 3.11"),
        "3.12": add_interpreter(home / ".pyenv/versions/3.12.1/bin/python3", "echo 3.12"),
        "3.14": add_interpreter(home / ".local/share/uv/python/cpython-3.14/bin/python3", "echo 3.14"),
    }
    add_interpreter(programs / "python3.12", "exit 127")  # a shim of a version that is not selected
    add_interpreter(home / ".pyenv/versions/2.7.18/bin/python3", "echo 2.7")
    add_interpreter(home / ".pyenv/versions/3.10.13/bin/python3", "echo 3.10")
    add_interpreter(home / ".pyenv/versions/3.11.7/bin/python3", "echo 3.11")
    (programs / "bash").symlink_to("/bin/bash")
    found = subprocess.run(
        [CHECKOUT / ".ci" / "interpreters"],
        env={"PATH": str(programs), "HOME": str(home)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert found.stdout.splitlines() == [f"{version} {path}" for version, path in expected.items()]


def test_ci_has_each_python_of_the_classifiers() -> None:
    promised = re.findall(r"Python :: (3\.\d+)$", (CHECKOUT / "setup.cfg").read_text(), re.MULTILINE)
    workflow = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == promised
