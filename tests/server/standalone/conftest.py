from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pytwisted import async_fixture
from tests.server.standalone.running import ApiClient, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.standalone.faults import FaultyStandalone


@async_fixture
async def standalone(reactor: EPollReactor, tmp_path: Path) -> AsyncIterator[FaultyStandalone]:
    async with running(reactor, tmp_path) as standalone:
        yield standalone


@pytest.fixture
def api(reactor: EPollReactor, standalone: FaultyStandalone) -> ApiClient:
    return ApiClient(reactor, standalone.api_url)
