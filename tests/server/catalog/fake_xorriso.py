"""A shell script in place of xorriso, which runs without isolation, because it acts on files of the test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from image_service.common.programs import sandbox

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def fake_xorriso(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script named xorriso first in PATH.

    Args:
        directory: for the script.
        monkeypatch: restores PATH.
        script: called with xorriso's arguments.
    """
    monkeypatch.setattr(sandbox, "find_isolation", lambda: "none")
    path = directory / "bin" / "xorriso"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
