"""The example of the Python API in docs/toolkit.md works."""

from __future__ import annotations

import re
import runpy
from typing import TYPE_CHECKING

from image_service.toolkit.disks.opening import open_image
from tests.packaging.conftest import CHECKOUT
from tests.toolkit.coreos_disk import DISK_SIZE, build_disk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_example_of_the_document_inspects_and_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs/toolkit.md").read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    build_disk(tmp_path).rename(tmp_path / "rhcos-metal.raw")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    *_, described, made = capsys.readouterr().out.splitlines()  # a warning may precede them
    assert described == f"raw {DISK_SIZE} ()"
    vhdx = tmp_path / "rhcos.vhdx"
    assert re.fullmatch(f"{vhdx.stat().st_size} [0-9a-f]{{64}}", made)
    with open_image(vhdx, "vhdx") as image:
        assert image.disk.virtual_size == DISK_SIZE
