"""Something else in the place of xorriso, to see what becomes of whoever runs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def fake_xorriso(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script be what is found under that name.

    Args:
        directory: for the script.
        monkeypatch: ends it with the test.
        script: is called with xorriso's arguments.
    """
    path = directory / "bin" / "xorriso"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
