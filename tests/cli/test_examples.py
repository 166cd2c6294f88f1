from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Run

CONF = Path(__file__).parents[2] / "conf"
CONTENTS = {path.name: path.read_bytes() for path in CONF.iterdir() if path.is_file()}


def contents_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_examples_are_written_into_a_new_directory_and_named(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "examples"
    ran = run("examples", directory)
    assert (ran.status, ran.errors) == (0, "")
    assert ran.output.decode().splitlines() == [str(directory / name) for name in sorted(CONTENTS)]
    assert contents_of(directory) == CONTENTS


def test_existing_file_is_kept_and_no_other_is_written(run: Run, tmp_path: Path) -> None:
    existing = tmp_path / "image-service.service"
    existing.write_bytes(b"changed")
    ran = run("examples", tmp_path)
    assert (ran.status, ran.output) == (1, b"")
    assert ran.errors == f"image-service: {existing}: exists; --force overwrites it\n"
    assert contents_of(tmp_path) == {existing.name: b"changed"}


def test_force_overwrites(run: Run, tmp_path: Path) -> None:
    (tmp_path / "image-service.service").write_bytes(b"changed")
    assert run("examples", "-f", tmp_path).status == 0
    assert contents_of(tmp_path) == CONTENTS


def test_directory_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("examples", tmp_path / "file" / "examples")
    assert ran.status == 1
    assert ran.errors == f"image-service: {tmp_path}/file/examples: Not a directory\n"
