from __future__ import annotations

import traceback

import pytest
from twisted.internet.task import Clock

from image_service.concurrency import negative_cache as absences_module
from image_service.concurrency.negative_cache import ABSENT_SECONDS, NegativeCache
from image_service.errors import NotFound, UnknownBaseImage


def is_absent(absences: NegativeCache[str], key: str) -> bool:
    try:
        absences.check(key)
    except NotFound:
        return True
    return False


def test_an_absence_is_told_for_its_time_and_then_forgotten() -> None:
    clock = Clock()
    absences: NegativeCache[str] = NegativeCache(clock)
    assert not is_absent(absences, "a")
    absences.add("a", UnknownBaseImage("no a", retry_after_seconds=7))
    clock.advance(ABSENT_SECONDS - 0.01)
    with pytest.raises(UnknownBaseImage) as raised:
        absences.check("a")
    assert (raised.value.detail, raised.value.retry_after_seconds) == ("no a", 7)
    assert not is_absent(absences, "b")
    clock.advance(0.01)
    assert not is_absent(absences, "a")


def test_saying_it_again_begins_anew() -> None:
    clock = Clock()
    absences: NegativeCache[str] = NegativeCache(clock)
    absences.add("a", NotFound("no"))
    clock.advance(ABSENT_SECONDS - 1)
    absences.add("a", NotFound("still not"))
    clock.advance(ABSENT_SECONDS - 1)
    assert is_absent(absences, "a")


def test_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences_module, "MAX_ABSENCES", 3)
    absences: NegativeCache[str] = NegativeCache(Clock())
    for key in ("a", "b", "c", "a", "d"):
        absences.add(key, NotFound(key))
    assert [is_absent(absences, key) for key in "abcd"] == [True, False, True, True]


def test_what_is_told_often_does_not_grow() -> None:
    """An exception keeps every frame that it has come through, with all that these hold."""
    absences: NegativeCache[str] = NegativeCache(Clock())

    def raise_within(depth: int) -> None:
        if depth:
            raise_within(depth - 1)
        raise NotFound("no")

    try:
        raise_within(50)
    except NotFound as error:
        absences.add("a", error)
    lengths = []
    for _ in range(3):
        with pytest.raises(NotFound) as raised:
            absences.check("a")
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert lengths == [2, 2, 2]
