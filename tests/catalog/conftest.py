"""Servers to fetch from, and what the catalog says in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.logger import globalLogPublisher

from tests.catalog.lines import Lines
from tests.catalog.origin import Origin, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor


@pytest.fixture
def origin() -> Iterator[Origin]:
    """Serve over plain HTTP."""
    with running() as server:
        yield server


@pytest.fixture
def lines(reactor: EPollReactor) -> Iterator[Lines]:
    """Read along in the log."""
    observer = Lines(reactor)
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)
