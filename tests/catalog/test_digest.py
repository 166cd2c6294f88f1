from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from image_service.catalog.storage.digest import Sidecar, sha256_of
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import Unavailable
from image_service.files.base_file import BaseFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(251)) * 10_000  # three blocks, the last one short


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BaseFile]:
    """Open a file of a few blocks."""
    path = tmp_path / "base.iso"
    path.write_bytes(CONTENT)
    with path.open("rb") as opened:
        yield BaseFile(opened.fileno(), len(CONTENT), str(path))


def test_is_that_of_the_whole_file(file: BaseFile, tmp_path: Path) -> None:
    digest = sha256_of(file, Sidecar(tmp_path / "rhcos-sidecar.json", file), Interruption())
    assert digest == hashlib.sha256(CONTENT).hexdigest()


def test_is_not_remembered_for_another_file(file: BaseFile, tmp_path: Path) -> None:
    sidecar = tmp_path / "rhcos-sidecar.json"
    sha256_of(file, Sidecar(sidecar, file), Interruption())
    status = os.fstat(file.descriptor)
    other = tmp_path / "other.iso"
    other.write_bytes(CONTENT[::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file.path)  # same name, size and time

    with open(file.path, "rb") as opened:  # noqa: PTH123 - BaseFile has its path as text
        replaced = BaseFile(opened.fileno(), len(CONTENT), file.path)
        digest = sha256_of(replaced, Sidecar(sidecar, replaced), Interruption())

    assert digest == hashlib.sha256(CONTENT[::-1]).hexdigest()


def test_is_not_taken_of_a_file_that_changes(file: BaseFile, tmp_path: Path) -> None:
    class Meddler(Interruption):
        """Writes to the file while it is read."""

        def raise_if_interrupted(self) -> None:
            os.truncate(file.path, len(CONTENT) - 1)

    sidecar = tmp_path / "rhcos-sidecar.json"
    with pytest.raises(Unavailable, match="changed"):
        sha256_of(file, Sidecar(sidecar, file), Meddler())
    assert not sidecar.exists()


def test_is_given_up_when_interrupted(file: BaseFile, tmp_path: Path) -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        sha256_of(file, Sidecar(tmp_path / "rhcos-sidecar.json", file), interruption)
    assert [path.name for path in tmp_path.iterdir()] == ["base.iso"]
