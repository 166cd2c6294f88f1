"""Boot images, and a client of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.snapshots.doubles import World
from tests.snapshots.doubles import world as make_world
from tests.snapshots.mounting import Client, say

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)
