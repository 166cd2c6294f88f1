from __future__ import annotations

from pathlib import Path

import pytest

from image_service.app.processes.serving_process import (
    CONTROL_IN,
    CONTROL_OUT,
    CREDENTIALS,
    FIRST_LISTENER,
    MEMORY,
    SLOTS,
    Assignment,
)
from image_service.app.standalone_mode import StandIn

STAND_IN = StandIn("https://127.0.0.1:1", Path("/data/ca.pem"), sample=None)
BASE_URL = "http://192.0.2.1:8080"


@pytest.mark.parametrize("stand_in", [None, STAND_IN])
def test_rendered_assignment_is_parsed_to_the_same(stand_in: StandIn | None) -> None:
    assignment = Assignment(1, 4, 2, stand_in, BASE_URL)
    assert Assignment.parse(assignment.render()) == assignment


def test_worker_has_its_pipes_shared_memory_slots_and_all_listeners() -> None:
    descriptors = Assignment(0, 2, 2, None, BASE_URL).descriptors(30, 31, 32, [40, 41, 42, 43])
    assert descriptors == {
        0: 0,
        1: 1,
        2: 2,
        CONTROL_IN: "w",
        CONTROL_OUT: "r",
        MEMORY: 30,
        SLOTS: 31,
        CREDENTIALS: 32,
        **{FIRST_LISTENER + index: 40 + index for index in range(4)},
    }
    assert sorted(descriptors) == list(range(12))
