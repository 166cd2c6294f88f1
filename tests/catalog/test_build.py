from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.catalog.build import warn_of_missing_programs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.catalog.lines import Lines


def test_missing_programs_are_named(lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "xorriso"
    installed.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    warn_of_missing_programs(["xorriso", "gpgv"])
    assert lines.text == (
        "gpgv is not installed; install the package gpgv: without it no base image is served whose signature"
        " was not verified before"
    )
