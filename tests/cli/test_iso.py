from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.formats.filesystems.iso_builder import KERNEL_ARGUMENTS, build_live_iso, live_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

CONFIG = b'{"ignition": {"version": "3.3.0"}}\n'


@pytest.fixture
def customized(run: Run, base: Path) -> Path:
    config, path = base.with_name("config.ign"), base.with_name("customized.iso")
    config.write_bytes(CONFIG)
    assert run("customize", base, "--ignition", config, "--karg-append", "a", "-o", path).status == 0
    return path


def test_customization_is_shown_and_reset(run: Run, customized: Path, out: Path, live_iso: bytes) -> None:
    assert run("iso", "ignition", "show", customized).output == CONFIG
    assert run("iso", "kargs", "show", customized).output.decode() == f"{KERNEL_ARGUMENTS} a\n"
    assert run("iso", "kargs", "show", "-d", customized).output.decode() == f"{KERNEL_ARGUMENTS}\n"
    assert run("iso", "reset", customized, "-o", out).status == 0
    assert out.read_bytes() == live_iso


def test_pristine_iso_has_no_config(run: Run, base: Path) -> None:
    refused = run("iso", "ignition", "show", base)
    assert (refused.status, refused.output) == (1, b"")
    assert refused.errors == f"image-service: {base} contains no Ignition config\n"


def test_iso_without_areas_has_no_kernel_arguments_to_show(run: Run, base: Path) -> None:
    files = {name: content for name, content in live_files().items() if name != "coreos/kargs.json"}
    base.write_bytes(build_live_iso(files))
    refused = run("iso", "kargs", "show", base)
    assert (refused.status, refused.output) == (1, b"")
    assert refused.errors == f"image-service: {base} has no embed areas for kernel arguments\n"
