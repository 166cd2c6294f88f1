from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.assisted.client import AssistedService
from tests.pytwisted import async_fixture
from tests.server.standalone.running import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.standalone.faults import FaultyStandalone


@async_fixture
async def standalone(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[FaultyStandalone]:
    async with running(reactor, tmp_path) as standalone:
        yield standalone


@async_fixture
async def assisted(reactor: EPollReactor, standalone: FaultyStandalone) -> AsyncIterator[AssistedService]:
    client = AssistedService(reactor, standalone.base_url, ca_file=standalone.ca_file)
    yield client
    await client.close()
