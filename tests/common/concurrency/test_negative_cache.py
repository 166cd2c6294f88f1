from __future__ import annotations

import traceback

import pytest
from twisted.internet.task import Clock

from image_service.common.concurrency import negative_cache
from image_service.common.concurrency.negative_cache import REFUSED_SECONDS, NegativeCache
from image_service.core.errors import Forbidden, ImageServiceError, NotFound, UnknownBaseImage


def is_refused(refusals: NegativeCache[str], key: str) -> bool:
    try:
        refusals.check(key)
    except ImageServiceError:
        return True
    return False


def test_negative_cache_raises_the_error_until_it_expires() -> None:
    clock = Clock()
    refusals: NegativeCache[str] = NegativeCache(clock)
    assert not is_refused(refusals, "a")
    refusals.add("a", UnknownBaseImage("no a", retry_after_seconds=7))
    clock.advance(REFUSED_SECONDS - 0.01)
    with pytest.raises(UnknownBaseImage) as raised:
        refusals.check("a")
    assert (raised.value.detail, raised.value.retry_after_seconds) == ("no a", 7)
    assert not is_refused(refusals, "b")
    clock.advance(0.01)
    assert not is_refused(refusals, "a")


def test_refusal_added_again_expires_later() -> None:
    clock = Clock()
    refusals: NegativeCache[str] = NegativeCache(clock)
    refusals.add("a", NotFound("no"))
    clock.advance(REFUSED_SECONDS - 1)
    refusals.add("a", Forbidden("still not"))
    clock.advance(REFUSED_SECONDS - 1)
    assert is_refused(refusals, "a")


def test_oldest_is_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negative_cache, "MAX_REFUSALS", 3)
    refusals: NegativeCache[str] = NegativeCache(Clock())
    for key in ("a", "b", "c", "a", "d"):
        refusals.add(key, NotFound(key))
    assert [is_refused(refusals, key) for key in "abcd"] == [True, False, True, True]


def test_raising_again_does_not_grow_the_traceback() -> None:
    """An exception keeps every frame that it has come through, with all that these hold."""
    refusals: NegativeCache[str] = NegativeCache(Clock())

    def raise_within(depth: int) -> None:
        if depth:
            raise_within(depth - 1)
        raise NotFound("no")

    try:
        raise_within(50)
    except NotFound as error:
        refusals.add("a", error)
    lengths = []
    for _ in range(3):
        with pytest.raises(NotFound) as raised:
            refusals.check("a")
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert lengths == [2, 2, 2]
