"""Copies of sparse files: the same bytes, and the same holes."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import TimedOut
from image_service.toolkit.disks.sparse_copy import copy_sparse
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
PIECES = st.lists(st.tuples(st.integers(0, 8 * MIB), st.binary(min_size=1, max_size=5000)), max_size=5)


def copy(
    directory: Path, size: int, pieces: list[tuple[int, bytes]], limits: Limits
) -> list[tuple[str, int, int]]:
    """Write `source`, copy it to `target` in a directory, and return the progress."""
    lines: list[tuple[str, int, int]] = []
    with ExitStack() as stack:
        source, target = (
            stack.enter_context((directory / name).open("w+b")) for name in ("source", "target")
        )
        for offset, data in pieces:
            source.seek(offset)
            source.write(data)
        source.flush()
        os.ftruncate(source.fileno(), size)
        workspace = stack.enter_context(
            Workspace(directory, limits, Progress(lambda *line: lines.append(line)))
        )
        copy_sparse(source.fileno(), target.fileno(), workspace)
    return lines


@settings(max_examples=20, deadline=None)
@given(size=st.integers(0, 9 * MIB), pieces=PIECES, is_refused=st.booleans())
def test_copy_has_the_same_bytes_and_holes(
    tmp_path_factory: pytest.TempPathFactory, size: int, pieces: list[tuple[int, bytes]], *, is_refused: bool
) -> None:
    """Where the kernel refuses to copy, the toolkit reads and writes."""
    directory = tmp_path_factory.mktemp("copy")
    with mock.patch.object(os, "copy_file_range", refuse) if is_refused else nullcontext():
        lines = copy(directory, size, pieces, Limits())
    source, target = directory / "source", directory / "target"
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks + 16
    assert (lines[0], lines[-1]) == (("copy", 0, size), ("copy", size, size))


def refuse(*_: object) -> int:
    raise OSError(95, "Operation not supported")


def test_copy_keeps_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paced: list[int] = []
    monkeypatch.setattr(Workspace, "pace", lambda _self, count: paced.append(count))
    copy(tmp_path, 64 * MIB, [(0, b"x" * MIB), (50 * MIB, b"y" * MIB)], Limits())
    assert sum(paced) == 2 * MIB


def test_copy_that_takes_too_long_ends(tmp_path: Path) -> None:
    with pytest.raises(TimedOut, match=r"^the call took more than 0.5 s \(--timeout\)$"):
        copy(tmp_path, MIB, [(0, b"x" * MIB)], Limits(io_bytes_per_second=1, wall_seconds=0.5))
