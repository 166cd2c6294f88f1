"""A file is written to the disk while it is made."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from image_service.cli.shared.output import open_output
from image_service.common.concurrency import writeback
from image_service.common.concurrency.writeback import written_back
from tests.toolkit.workspace.calls import workspace_in

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_MIB = 1 << 20
_WAIT_SECONDS = 60


def test_data_is_written_while_the_file_is_made_and_holes_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: set[int] = set()
    seen = Event()

    def sync_file_range(_: int, offset: int, length: int, flags: int) -> int:
        assert flags == 2  # begin to write, do not wait
        written.update(range(offset // _MIB, (offset + length - 1) // _MIB + 1))
        if 99 in written:
            seen.set()
        return 0

    monkeypatch.setattr(writeback, "_sync_file_range", sync_file_range)
    with written_back(tmp_path / "file"), (tmp_path / "file").open("wb") as file:
        file.write(bytes(70 * _MIB))
        file.truncate(200 * _MIB)
        file.seek(99 * _MIB)
        file.write(b"data")
        file.flush()
        assert seen.wait(_WAIT_SECONDS)
    assert written >= set(range(70))
    assert not written & set(range(72, 98))
    assert max(written) < 101


def test_kernel_accepts_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int] = []
    called, call = Event(), writeback._sync_file_range

    def sync_file_range(*arguments: int) -> int:
        answers.append(call(*arguments))
        called.set()
        return answers[-1]

    monkeypatch.setattr(writeback, "_sync_file_range", sync_file_range)
    (tmp_path / "file").write_bytes(b"data")
    with written_back(tmp_path / "file"):
        assert called.wait(_WAIT_SECONDS)
    assert set(answers) == {0}


def test_outputs_of_customize_and_of_the_toolkit_are_written_while_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Event()
    monkeypatch.setattr(writeback, "_sync_file_range", lambda *_: called.set())
    with open_output(tmp_path / "image.iso") as file:
        file.write(b"data")
        assert called.wait(_WAIT_SECONDS)
    called.clear()
    with workspace_in(tmp_path) as workspace, workspace.output(tmp_path / "disk.raw") as path:
        path.write_bytes(b"data")
        assert called.wait(_WAIT_SECONDS)
