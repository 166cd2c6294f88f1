from __future__ import annotations

from pathlib import Path

import pytest

from image_service.app.stand_in import StandIn
from image_service.app.workers.assignment import Assignment

STAND_IN = StandIn("https://127.0.0.1:1", Path("/data/ca.pem"), sample=None)


@pytest.mark.parametrize("stand_in", [None, STAND_IN])
def test_a_worker_is_told_what_the_supervisor_says(stand_in: StandIn | None) -> None:
    assignment = Assignment(1, 4, 2, stand_in)
    assert Assignment.loads(assignment.dumps()) == assignment
