from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.jobs.dispatch.dispatching import Dispatching, OpenDispatching


@pytest.fixture
def dispatching(open_dispatching: OpenDispatching) -> Dispatching:
    return open_dispatching()
