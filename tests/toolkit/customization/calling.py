"""What the tests of customization share: a customization, and calls of the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from image_service.toolkit.commands import main
from image_service.toolkit.customization.disk_customization import DiskCustomization
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFIG = b'{"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "x": "s3cret"}]}}'
KEYFILE_NAME = "Wired connection 1.nmconnection"
KEYFILE = b"[connection]\nid=eth0\npsk=s3cret\n"
CUSTOMIZATION = DiskCustomization(
    CONFIG, "aws", ("answer=42",), ("mitigations=auto,nosmt",), {KEYFILE_NAME: KEYFILE}
)


def open_scratch(directory: Path) -> Workspace:
    """Return a workspace without limits."""
    return Workspace(directory, Limits(), Progress(lambda _phase, _done, _total: None))


def write_inputs(directory: Path) -> list[str]:
    """Write the files of `CUSTOMIZATION`, and return the arguments that name it."""
    (directory / "config.ign").write_bytes(CONFIG)
    (directory / KEYFILE_NAME).write_bytes(KEYFILE)
    return [
        f"--ignition={directory / 'config.ign'}",
        f"--network-keyfile={directory / KEYFILE_NAME}",
        "--platform=aws",
        "--karg-append=answer=42",
        "--karg-delete=mitigations=auto,nosmt",
    ]


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run ``image-toolkit customize`` with --json, and return its report."""
    status = main(["customize", *map(str, arguments), "--json", "--progress=none"])
    printed = capsys.readouterr()
    assert "s3cret" not in printed.out + printed.err
    report: dict[str, Any] = json.loads(printed.out)
    assert report["exit"] == status
    return report
