"""Bounds of what is cached of snapshots; what is logged and counted."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest
from twisted.logger import capturedLogs, formatEvent

from image_service.core.errors import (
    Conflict,
    Forbidden,
    ImageServiceError,
    NotFound,
    Unavailable,
    UpstreamError,
)
from image_service.server.snapshots import snapshots as snapshots_module
from image_service.server.snapshots.cache import snapshot_cache
from image_service.server.snapshots.cache.cache_entry import MAX_OLDER
from image_service.server.snapshots.cache.validation import REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import (
    KEY,
    MAX_AGE,
    OTHERS,
    TTL,
    Pinning,
    lines_of_failure,
)

if TYPE_CHECKING:
    from image_service.server.snapshots.storage.snapshot import Question
    from tests.conftest import LoggedFailures


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


# Bounds.


def cached(pinning: Pinning) -> list[Question]:
    return [key for key in (KEY, *OTHERS) if pinning.snapshots.get_cached_snapshot(key.key)]


def test_evicted_entry_is_restored_and_ends_with_its_mounts(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_ENTRIES", 2)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    config = pinning.config(first)
    for question in OTHERS:
        pinning.newest(question)
    assert not pinning.may_continue(first)
    again = pinning.newest()
    assert (again is not first, pinning.config(again)) == (True, config)
    outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.may_continue(first)
    assert pinning.rounds == 1 + len(OTHERS)
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        pinning.newest()
    assert not pinning.may_continue(first)
    with pytest.raises(Forbidden):
        outcome(pinning.snapshots.revalidate(first, None))


def test_mount_of_an_evicted_entry_ends_with_a_missed_end(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_ENTRIES", 1)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    pinning.newest(OTHERS[0])
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        pinning.newest()
    pinning.upstream.error, pinning.upstream.text = None, "changed"
    pinning.clock.advance(RETRY_SECONDS)
    pinning.newest()
    assert not pinning.may_continue(first)
    with pytest.raises(NotFound):
        outcome(pinning.snapshots.revalidate(first, None))


def test_renewed_entry_is_evicted_last(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "MAX_ENTRIES", 2)
    pinning.__attrs_post_init__()
    pinning.newest()
    pinning.newest(OTHERS[0])
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    pinning.newest(OTHERS[1])
    assert cached(pinning) == [KEY, OTHERS[1]]
    assert pinning.snapshots.get_cached_snapshot(KEY.key)
    pinning.newest(OTHERS[2])
    assert cached(pinning) == [KEY, OTHERS[2]]


def test_end_reaches_an_entry_restored_during_revalidation(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin may make room, and be found again, in the midst of its own revalidation."""
    monkeypatch.setattr(snapshot_cache, "MAX_ENTRIES", 1)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], Forbidden("no longer")
    going_on = Outcome(pinning.snapshots.revalidate(first, None))
    pinning.upstream.error, held, pinning.upstream.held = None, pinning.upstream.held, None
    pinning.newest(OTHERS[0])
    again = Outcome(pinning.snapshots.get(KEY))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    assert again.value is not first
    pinning.upstream.error = Forbidden("no longer")
    held[0].callback(None)
    for snapshot in (first, again.value):
        assert not pinning.may_continue(snapshot)
        with pytest.raises(Forbidden):
            outcome(pinning.snapshots.revalidate(snapshot, None))


def test_older_generations_are_bounded(pinning: Pinning) -> None:
    pinning.upstream.text = "0"
    first = pinning.newest()
    for number in range(30):
        pinning.upstream.text = str(number)
        pinning.newest()
        pinning.clock.advance(TTL)
    newest = pinning.newest()
    entry = pinning.snapshots.cache.get_cached_entry(KEY.key)
    assert entry is not None
    assert entry.snapshot is newest
    assert [snapshot.generation for snapshot in entry.older] == list(range(29, 29 - MAX_OLDER, -1))
    assert first.validity is entry.validity, "a mount that reads the first one ends with all"
    after = pinning.restarted()
    for generation in range(30, 0, -1):
        outcome(after.snapshots.find_generation(KEY, generation))
    after.newest()
    entry = after.snapshots.cache.get_cached_entry(KEY.key)
    assert entry is not None
    assert len(entry.older) <= MAX_OLDER


def test_too_many_first_requests_are_refused_with_retry_after(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MAX_ASKING", 3)
    pinning.__attrs_post_init__()
    pinning.upstream.held = []
    asked = [Outcome(pinning.snapshots.get(question)) for question in OTHERS[:3]]
    with pytest.raises(Unavailable) as raised:
        pinning.newest()
    assert raised.value.retry_after_seconds
    joined = Outcome(pinning.snapshots.get(OTHERS[0]))
    assert pinning.rounds == 3
    pinning.upstream.release()
    assert joined.value is asked[0].value
    assert pinning.newest().generation == 1


@pytest.mark.parametrize("seconds", [MAX_AGE, TTL])
@pytest.mark.parametrize("error", [Conflict("409"), UpstreamError("502"), NotFound("404")])
def test_repeated_error_does_not_grow(pinning: Pinning, error: ImageServiceError, seconds: float) -> None:
    """Nor does what is kept of it keep alive what it came through."""
    validity = pinning.newest().validity
    assert validity is not None
    pinning.clock.advance(seconds)
    pinning.upstream.error = error
    Outcome(pinning.snapshots.get(KEY))
    kept = validity.error
    if kept is not None:
        assert kept.__traceback__ is None
        validity.failing_since = 0.0
    assert validity.is_ended is (kept is None)
    lengths = set()
    for _ in range(20):
        with pytest.raises(type(error)) as raised:
            pinning.newest()
        lengths.add(len(traceback.extract_tb(raised.value.__traceback__)))
        assert raised.value.__context__ is None
    assert len(lengths) == 1
    assert pinning.rounds == 2


def test_logs_and_reprs_show_no_secret(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    question = OTHERS[2]
    pinning.upstream.text = "s3cr3t-text"
    with capturedLogs() as events:
        first = pinning.newest(question)
        for error in (UpstreamError("no"), KeyError("odd"), Conflict("409"), Forbidden("no")):
            pinning.clock.advance(TTL)
            pinning.upstream.error = error
            Outcome(pinning.snapshots.get(question))
    logged_failures.flush(KeyError)
    assert question.credentials is not None
    for shown in (
        repr(first),
        repr(question),
        repr(first.validity),
        *map(formatEvent, events),
    ):
        assert "s3cr3t" not in shown
        assert "'one'" not in shown
    assert pinning.snapshots.get_cached_snapshot(question.key) is None


def test_events_are_counted(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.snapshots.get_cached_snapshot(KEY.key)
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.upstream.text = "changed"
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    pinning.upstream.error = Forbidden("no")
    pinning.clock.advance(RETRY_SECONDS)
    Outcome(pinning.snapshots.get(KEY))
    assert pinning.counted == {
        "miss": 1,
        "hit": 1,
        "unchanged": 1,
        "changed": 1,
        "failed": 1,
        "grace": 1,
        "refused": 1,
    }
