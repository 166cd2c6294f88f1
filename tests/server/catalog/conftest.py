"""An origin server, and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from tests.pytwisted import async_fixture
from tests.server.catalog.catalogs import Catalogs
from tests.server.catalog.lines import Lines
from tests.server.catalog.origin import Origin, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect directly, even if the environment names a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def origin() -> Iterator[Origin]:
    """An origin over plain HTTP."""
    with running() as server:
        yield server


@pytest.fixture
def lines(reactor: EPollReactor) -> Iterator[Lines]:
    """The log lines of the test."""
    observer = Lines(reactor)
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)


@async_fixture
async def catalogs(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[Catalogs]:
    catalogs = Catalogs(reactor, Clock(), tmp_path / "data", [])
    yield catalogs
    for catalog in catalogs.started:
        await catalog.stop()
