from __future__ import annotations

import pytest

from image_service.server.http.request_id import new_request_id, valid_request_id


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "0",
        "4f0c-11ee",
        "A1:b/c+d=e_f.g",
        "x" * 128,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ],
)
def test_valid_request_id_is_kept(value: str) -> None:
    assert valid_request_id(value) == value


@pytest.mark.parametrize(
    "value", [None, "", "x" * 129, "a b", "a\r\nX: y", "a\n", '"a"', "a;b", "ä", "{a}", "a,b", "<a>", "٣"]
)
def test_invalid_request_id_is_dropped(value: str | None) -> None:
    assert valid_request_id(value) == ""


def test_new_request_id_is_valid_and_unique() -> None:
    made = {new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(valid_request_id(identifier) == identifier for identifier in made)
