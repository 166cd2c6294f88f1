from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from image_service.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_digests_of_a_file_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [b"\1" * 1048576, b"\2" * 1048576, b"\3" * 10]
    (tmp_path / "base.iso").write_bytes(b"".join(blocks))
    assert main(["digests", str(tmp_path / "base.iso")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"sha256 {2 * 1048576 + 10} 1048576",
        *(hashlib.sha256(block).hexdigest() for block in blocks),
    ]


def test_directory_has_no_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digests", str(tmp_path)]) == 1
    assert "is not a regular file" in capsys.readouterr().err
