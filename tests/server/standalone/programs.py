"""Programs that the stand-in starts: doubles, and real ones in PATH."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tests.acceptance.clients import needs_client

if TYPE_CHECKING:
    import pytest

SYSTEM_PATH = "/usr/bin:/bin"
"""Without programs that were compiled for tests."""


def put_double(monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, script: str) -> None:
    """Put a shell script into PATH in the place of a program."""
    program = directory / name
    program.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{SYSTEM_PATH}")


def put_printer(monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, output: str) -> None:
    """Put a program into PATH that prints a text whatever it reads."""
    put_double(monkeypatch, directory, name, f"printf %s {quote(output)}")


def put_client(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Put the real program into PATH, or skip the test."""
    monkeypatch.setenv("PATH", f"{Path(needs_client(name)).parent}:{os.environ['PATH']}")


def put_ksvalidator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put pykickstart's program into PATH, which is installed with the tests."""
    program = needs_client(f"{sysconfig.get_path('scripts')}/ksvalidator")
    monkeypatch.setenv("PATH", str(Path(program).parent), prepend=":")
