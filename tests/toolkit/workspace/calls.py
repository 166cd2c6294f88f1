"""Workspaces for tests, and what must be left of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024


@contextmanager
def workspace_in(directory: Path, limits: Limits | None = None) -> Iterator[Workspace]:
    """Yield a workspace; afterwards nothing is left in its scratch directory, which must be empty before."""
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    with Workspace(scratch, limits or Limits(), Progress(lambda *_: None)) as workspace:
        yield workspace
    assert list(scratch.iterdir()) == []
