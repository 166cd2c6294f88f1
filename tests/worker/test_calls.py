from __future__ import annotations

import pytest

from image_service.worker.calls import error_id


@pytest.mark.parametrize(
    ("status", "number"), [(1, 10), (2, 8), (3, 17), (4, 11), (5, 10), (6, 4), (7, 10), (8, 10)]
)
def test_exit_status_of_the_toolkit_has_an_id(status: int, number: int) -> None:
    assert error_id(status) == number
