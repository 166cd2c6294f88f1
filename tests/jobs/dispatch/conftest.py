from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.dispatch.dispatching import Dispatching

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


@pytest.fixture
def dispatching(reactor: EPollReactor, tmp_path: Path) -> Dispatching:
    return Dispatching.open(reactor, tmp_path)
