"""Boot images and a client of theirs, and a repository on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.snapshots.doubles import World
from tests.snapshots.doubles import world as make_world
from tests.snapshots.mounting import Client, say
from tests.snapshots.outcomes import outcome
from tests.snapshots.repositories import repository_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.snapshots.sql_repository import SqlRepository


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[SqlRepository]:
    repository = repository_in(tmp_path)
    yield repository
    outcome(repository.close())


@pytest.fixture(autouse=True)
def _first_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the generations of each key count from 1."""
    monkeypatch.setattr("image_service.snapshots.sealed_repository.first_generation", lambda: 1)
