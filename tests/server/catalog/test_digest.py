from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import Unavailable
from image_service.server.catalog.storage.digest import Sidecar, get_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.base_file import BaseFile

CONTENT = bytes(range(251)) * 10_000  # three blocks, the last one short


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BaseFile]:
    """Open a file of a few blocks."""
    path = tmp_path / "base.iso"
    path.write_bytes(CONTENT)
    with path.open("rb") as opened:
        yield LocalFile(opened.fileno(), len(CONTENT), str(path))


def test_digest_is_of_the_whole_file(file: BaseFile, tmp_path: Path) -> None:
    digest = get_sha256(file, Sidecar(tmp_path / "rhcos-sidecar.json", file), Interruption())
    assert digest == hashlib.sha256(CONTENT).hexdigest()


def test_sidecar_of_a_replaced_file_is_ignored(file: BaseFile, tmp_path: Path) -> None:
    sidecar = tmp_path / "rhcos-sidecar.json"
    get_sha256(file, Sidecar(sidecar, file), Interruption())
    status = os.fstat(file.descriptor)
    other = tmp_path / "other.iso"
    other.write_bytes(CONTENT[::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file.path)  # same name, size and time

    with open(file.path, "rb") as opened:  # noqa: PTH123 - BaseFile has its path as text
        replaced = LocalFile(opened.fileno(), len(CONTENT), file.path)
        digest = get_sha256(replaced, Sidecar(sidecar, replaced), Interruption())

    assert digest == hashlib.sha256(CONTENT[::-1]).hexdigest()


def test_digest_of_a_file_that_changes_is_unavailable(file: BaseFile, tmp_path: Path) -> None:
    class TruncatingInterruption(Interruption):
        """Writes to the file while it is read."""

        def raise_if_interrupted(self) -> None:
            os.truncate(file.path, len(CONTENT) - 1)

    sidecar = tmp_path / "rhcos-sidecar.json"
    with pytest.raises(Unavailable, match="changed"):
        get_sha256(file, Sidecar(sidecar, file), TruncatingInterruption())
    assert not sidecar.exists()


def test_interruption_stops_the_digest(file: BaseFile, tmp_path: Path) -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        get_sha256(file, Sidecar(tmp_path / "rhcos-sidecar.json", file), interruption)
    assert [path.name for path in tmp_path.iterdir()] == ["base.iso"]
