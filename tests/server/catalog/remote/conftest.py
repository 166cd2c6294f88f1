"""The fixture of remote images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pytwisted import async_fixture
from tests.server.catalog.remote.remotes import RemoteCatalogs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


@async_fixture
async def remotes(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[RemoteCatalogs]:
    catalogs = RemoteCatalogs(reactor, tmp_path / "data")
    yield catalogs
    for catalog in catalogs.started:
        await catalog.stop()
