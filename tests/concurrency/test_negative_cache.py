from __future__ import annotations

import traceback

import pytest
from twisted.internet.task import Clock

from image_service.concurrency import negative_cache as absences_module
from image_service.concurrency.negative_cache import ABSENT_SECONDS, NegativeCache
from image_service.errors import NotFound, UnknownBaseImage


def is_absent(absences: NegativeCache[str], key: str) -> bool:
    try:
        absences.check_absence(key)
    except NotFound:
        return True
    return False


def test_negative_cache_raises_the_error_until_it_expires() -> None:
    clock = Clock()
    absences: NegativeCache[str] = NegativeCache(clock)
    assert not is_absent(absences, "a")
    absences.add_absence("a", UnknownBaseImage("no a", retry_after_seconds=7))
    clock.advance(ABSENT_SECONDS - 0.01)
    with pytest.raises(UnknownBaseImage) as raised:
        absences.check_absence("a")
    assert (raised.value.detail, raised.value.retry_after_seconds) == ("no a", 7)
    assert not is_absent(absences, "b")
    clock.advance(0.01)
    assert not is_absent(absences, "a")


def test_absence_added_again_expires_later() -> None:
    clock = Clock()
    absences: NegativeCache[str] = NegativeCache(clock)
    absences.add_absence("a", NotFound("no"))
    clock.advance(ABSENT_SECONDS - 1)
    absences.add_absence("a", NotFound("still not"))
    clock.advance(ABSENT_SECONDS - 1)
    assert is_absent(absences, "a")


def test_oldest_is_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences_module, "MAX_ABSENCES", 3)
    absences: NegativeCache[str] = NegativeCache(Clock())
    for key in ("a", "b", "c", "a", "d"):
        absences.add_absence(key, NotFound(key))
    assert [is_absent(absences, key) for key in "abcd"] == [True, False, True, True]


def test_raising_again_does_not_grow_the_traceback() -> None:
    """An exception keeps every frame that it has come through, with all that these hold."""
    absences: NegativeCache[str] = NegativeCache(Clock())

    def raise_within(depth: int) -> None:
        if depth:
            raise_within(depth - 1)
        raise NotFound("no")

    try:
        raise_within(50)
    except NotFound as error:
        absences.add_absence("a", error)
    lengths = []
    for _ in range(3):
        with pytest.raises(NotFound) as raised:
            absences.check_absence("a")
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert lengths == [2, 2, 2]
