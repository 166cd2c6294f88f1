"""Snapshots while assisted-service fails or refuses, and old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from twisted.python.failure import Failure

from image_service.core.errors import (
    Conflict,
    Forbidden,
    IgnitionInvalid,
    ImageServiceError,
    UpstreamError,
    UpstreamQueueFull,
    UpstreamTimeout,
)
from image_service.server.snapshots.cache.validation import LATE_SECONDS, REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.storage.validity import NO_SLOT_SECONDS, RETRY_SECONDS
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import (
    FAILING,
    GRACE,
    KEY,
    MAX_AGE,
    MOMENT,
    NOW,
    TTL,
    Pinning,
    lines_of_failure,
)

if TYPE_CHECKING:
    from tests.conftest import LoggedFailures


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


def of(error: BaseException) -> type[BaseException]:
    """What becomes of an error where it is kept: nobody is told what nobody foresaw."""
    return type(error) if isinstance(error, ImageServiceError) else ImageServiceError


# The grace.


@pytest.mark.parametrize("error", FAILING)
def test_snapshot_is_served_for_the_grace_while_asking_fails(
    pinning: Pinning, error: Exception, logged_failures: LoggedFailures
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    assert len(lines_of_failure(pinning, error, logged_failures)) == 1
    for _ in range(int(GRACE / 10)):
        assert lines_of_failure(pinning, error, logged_failures) == []
        assert pinning.newest() is first
        outcome(pinning.snapshots.revalidate(first, None))
        pinning.clock.advance(10)
    for _ in range(2):
        with pytest.raises(of(error)) as raised:
            pinning.newest()
        assert "nobody foresaw" not in str(raised.value)
        with pytest.raises(of(error)):
            outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.counted["grace"] > GRACE / 10
    logged_failures.flush(KeyError)
    pinning.upstream.error = None
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest() is first


def test_missing_slot_starts_no_grace(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL + LATE_SECONDS)
    pinning.upstream.error = UpstreamQueueFull("no slot")
    for _ in range(2):
        with pytest.raises(UpstreamQueueFull):
            pinning.newest()
        with pytest.raises(UpstreamQueueFull):
            outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.snapshots.in_grace == 0
    assert pinning.counted["grace"] == pinning.counted["failed"] == 0
    pinning.upstream.error = None
    assert pinning.newest() is first, "without a pause"
    assert pinning.upstream.revalidations == [False, *[True] * 5]


def test_snapshot_is_served_without_a_slot_for_30_seconds(pinning: Pinning) -> None:
    """Or who keeps the slots taken would keep a revoked credential good."""
    first = pinning.newest()
    pinning.clock.advance(TTL)
    for late_seconds in (0.0, LATE_SECONDS / 2, LATE_SECONDS - REVALIDATION_TIMEOUT_SECONDS, LATE_SECONDS):
        pinning.clock.advance(NOW + TTL + late_seconds - pinning.clock.seconds())
        is_refused = late_seconds == LATE_SECONDS
        pinning.upstream.held, pinning.upstream.error = [], UpstreamQueueFull("no slot")
        requests = pinning.snapshots.revalidate(first, None), pinning.snapshots.get(KEY)
        asked: list[Outcome[Any]] = [Outcome(request) for request in requests]
        pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS - MOMENT)
        assert [each.has_fired for each in asked] == [False] * 2
        pinning.upstream.release()
        assert [isinstance(each.result, Failure) for each in asked] == [is_refused] * 2
    pinning.upstream.held, pinning.upstream.error = None, Forbidden("revoked")
    with pytest.raises(Forbidden):
        outcome(pinning.snapshots.revalidate(first, None))


def test_request_waits_a_second_for_a_slot(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = UpstreamQueueFull("no slot")
    assert pinning.newest() is first
    pinning.upstream.held = []
    assert outcome(pinning.snapshots.revalidate(first, None)) is None, "without waiting for a slot"
    assert pinning.newest() is first
    pinning.clock.advance(NO_SLOT_SECONDS)
    asked = Outcome(pinning.snapshots.get(KEY))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS - MOMENT)
    assert not asked.has_fired
    pinning.clock.advance(MOMENT)
    assert asked.value is first


def test_pause_after_a_missing_slot_prolongs_nothing(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.upstream.error = UpstreamQueueFull("no slot")
    pinning.clock.advance(TTL + LATE_SECONDS - NO_SLOT_SECONDS / 2)
    assert pinning.newest() is first
    pinning.clock.advance(NO_SLOT_SECONDS / 2)
    with pytest.raises(UpstreamQueueFull):
        pinning.newest()


def test_ranges_of_a_failing_image_wait_for_a_slot_once_a_second(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("down"), logged_failures)
    pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = UpstreamQueueFull("no slot")
    assert pinning.newest() is first
    pinning.upstream.held = []
    assert outcome(pinning.snapshots.revalidate(first, None)) is None, "without waiting for a slot"
    pinning.clock.advance(NO_SLOT_SECONDS)
    assert not Outcome(pinning.snapshots.revalidate(first, None)).has_fired


def test_missing_slot_ends_no_grace(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("down"), logged_failures)
    pinning.upstream.error = UpstreamQueueFull("no slot")
    while pinning.clock.seconds() < NOW + TTL + GRACE - RETRY_SECONDS:
        pinning.clock.advance(RETRY_SECONDS)
        assert pinning.newest() is first
    pinning.clock.advance(RETRY_SECONDS)
    with pytest.raises(UpstreamError):
        pinning.newest()


def test_grace_begins_with_the_first_call_that_failed(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], UpstreamTimeout("slow")
    asked = Outcome(pinning.snapshots.revalidate(first, None))
    pinning.clock.advance(30)
    assert asked.value is None
    pinning.upstream.release()
    pinning.clock.advance(GRACE - 30 - MOMENT)
    assert pinning.newest() is first
    pinning.clock.advance(MOMENT)
    with pytest.raises(UpstreamTimeout):
        pinning.newest()


def test_snapshot_is_served_for_30_seconds_while_an_answer_is_late(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    Outcome(pinning.snapshots.revalidate(first, None))
    pinning.clock.advance(LATE_SECONDS - MOMENT)
    assert pinning.newest() is first
    pinning.clock.advance(MOMENT)
    waiting = Outcome(pinning.snapshots.revalidate(first, None))
    pinning.clock.advance(GRACE)
    assert not waiting.has_fired
    pinning.upstream.release()
    assert waiting.value is None


def test_validation_counts_from_when_it_was_asked_for(pinning: Pinning) -> None:
    """Who was revoked since would be served for longer, otherwise."""
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    waiting = Outcome(pinning.snapshots.get(KEY))
    pinning.clock.advance(TTL / 2)
    pinning.upstream.release()
    assert waiting.value is first
    pinning.clock.advance(TTL / 2 - MOMENT)
    assert pinning.may_continue(first)
    pinning.clock.advance(MOMENT)
    assert not pinning.may_continue(first)


def test_grace_ends(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(GRACE - MOMENT)
    pinning.newest()
    assert pinning.snapshots.in_grace == 1
    pinning.clock.advance(MOMENT)
    assert pinning.snapshots.in_grace == 0, "even if nobody asks any more"
    with pytest.raises(UpstreamError):
        pinning.newest()


def test_error_after_the_grace_is_the_latest(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("first", retry_after_seconds=9), logged_failures)
    pinning.clock.advance(GRACE)
    pinning.upstream.error = UpstreamTimeout("find_newest", retry_after_seconds=7)
    with pytest.raises(UpstreamTimeout, match="find_newest") as raised:
        pinning.newest()
    assert raised.value.retry_after_seconds == 7


def test_failed_revalidation_is_retried_after_a_pause(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    for _ in range(10):
        pinning.newest()
        outcome(pinning.snapshots.revalidate(snapshot, None))
        assert pinning.rounds == 2
        pinning.clock.advance(RETRY_SECONDS / 10)
    pinning.newest()
    assert pinning.rounds == 3


def test_each_failure_after_a_recovery_has_its_own_grace_and_warning(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    first = pinning.newest()
    for _ in range(3):
        pinning.clock.advance(TTL)
        assert len(lines_of_failure(pinning, UpstreamError("no"), logged_failures)) == 1
        pinning.clock.advance(GRACE - 1)
        pinning.upstream.error = None
        assert pinning.newest() is first
        assert pinning.snapshots.get_cached_snapshot(KEY.key) is first


def test_change_after_a_failure_is_seen(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    pinning.upstream.error, pinning.upstream.text = None, "changed"
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest().generation == 2


def test_refusal_ends_the_grace(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        outcome(pinning.snapshots.revalidate(snapshot, None))


def test_unexpected_error_is_logged_without_waiting_requests(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], KeyError("odd")
    going_on = Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    pinning.upstream.release()
    assert len(logged_failures.flush(KeyError)) == 1


# The age.


def test_unchanged_answer_after_max_age_is_a_new_generation(pinning: Pinning) -> None:
    first = pinning.newest()
    config = pinning.config(first)
    for _ in range(int(MAX_AGE / TTL) - 1):
        pinning.clock.advance(TTL)
        assert pinning.newest() is first
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is first
    pinning.clock.advance(MOMENT)
    second = pinning.newest()
    assert second.generation == 2
    assert pinning.config(second) != config
    outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.config(first) == config


def test_max_age_counts_from_the_answer_not_from_validation(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(MAX_AGE - 1)
    assert pinning.newest() is first
    pinning.clock.advance(1)
    assert pinning.may_continue(first)
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is None
    assert pinning.newest().generation == 2


@pytest.mark.parametrize("error", FAILING[:3])
def test_old_snapshot_serves_mounts_in_progress_while_asking_fails(
    pinning: Pinning, error: Exception
) -> None:
    first = pinning.newest()
    pinning.clock.advance(MAX_AGE)
    pinning.upstream.error = error
    for _ in range(3):
        with pytest.raises(type(error)):
            pinning.newest()
        outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.rounds == 2


def test_old_snapshot_serves_mounts_in_progress_while_asking_is_slow(pinning: Pinning) -> None:
    """A new mount waits for as long as its request may; one in progress for a moment."""
    first = pinning.newest()
    pinning.clock.advance(MAX_AGE)
    pinning.upstream.held = []
    new, going_on = (
        Outcome(pinning.snapshots.get(KEY)),
        Outcome(pinning.snapshots.revalidate(first, None)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert (new.has_fired, going_on.has_fired) == (False, True)
    later = Outcome(pinning.snapshots.get(KEY))
    pinning.clock.advance(10)
    assert (new.has_fired, later.has_fired) == (False, False)
    pinning.upstream.release()
    assert new.value is later.value
    assert new.value.generation == 2
    assert pinning.rounds == 2


# A state that assisted-service gives no image for.


def test_corrected_infra_env_is_served_again(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = IgnitionInvalid("422")
    with pytest.raises(IgnitionInvalid):
        pinning.newest()
    pinning.upstream.error = None
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest() is first


def test_refusal_ends_a_failure(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    lines_of_failure(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = Conflict("409")
    for _ in range(2):
        with pytest.raises(Conflict):
            outcome(pinning.snapshots.revalidate(first, None))
        pinning.clock.advance(GRACE)
