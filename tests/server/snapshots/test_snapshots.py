"""Getting, revalidating and ending snapshots."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import (
    Conflict,
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamQueueFull,
    UpstreamTimeout,
)
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.server.snapshots.cache.validation import REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import (
    FAILING,
    KEY,
    MOMENT,
    OTHERS,
    REFUSING,
    TTL,
    Pinning,
)


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


# Within the TTL.


def test_answer_is_not_asked_for_again_within_the_ttl(pinning: Pinning) -> None:
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is None
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.newest() is snapshot
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is snapshot
    assert pinning.may_continue(snapshot)
    outcome(pinning.snapshots.revalidate(snapshot, None))
    assert pinning.config(snapshot) == config
    assert pinning.upstream.asked == [KEY]
    pinning.clock.advance(MOMENT)
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is None
    assert not pinning.may_continue(snapshot)


def test_ttl_starts_with_the_answer(pinning: Pinning) -> None:
    pinning.upstream.held = []
    asked = Outcome(pinning.snapshots.get(KEY))
    pinning.clock.advance(TTL)
    pinning.upstream.release()
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is asked.value


def test_two_hundred_requests_make_one_round(pinning: Pinning) -> None:
    pinning.upstream.held = []
    askers = [Outcome(pinning.snapshots.get(KEY)) for _ in range(200)]
    assert not any(asker.has_fired for asker in askers)
    pinning.upstream.release()
    assert {id(asker.value) for asker in askers} == {id(pinning.newest())}
    assert pinning.rounds == 1


def test_first_failure_is_shared_by_waiting_requests_only(pinning: Pinning) -> None:
    pinning.upstream.held, pinning.upstream.error = [], UpstreamError("no")
    askers = [Outcome(pinning.snapshots.get(KEY)) for _ in range(3)]
    pinning.upstream.release()
    assert [type(asker.error) for asker in askers] == [UpstreamError] * 3
    pinning.upstream.error = None
    assert pinning.newest().generation == 1
    assert pinning.rounds == 2


@pytest.mark.parametrize("error", [*FAILING, *REFUSING])
def test_error_without_a_snapshot_is_raised_and_not_stored(pinning: Pinning, error: Exception) -> None:
    pinning.upstream.error = error
    with pytest.raises(type(error)):
        pinning.newest()
    pinning.clock.advance(5)
    pinning.upstream.error = None
    assert pinning.newest().generation == 1


def test_keys_share_nothing(pinning: Pinning) -> None:
    questions = [KEY, *OTHERS]
    snapshots = [pinning.newest(question) for question in questions]
    assert len({pinning.config(snapshot) for snapshot in snapshots}) == len(questions)
    pinning.upstream.error = Forbidden("not these")
    pinning.clock.advance(TTL)
    with pytest.raises(Forbidden):
        pinning.newest()
    pinning.upstream.error = None
    for question, snapshot in zip(OTHERS, snapshots[1:], strict=True):
        outcome(pinning.snapshots.revalidate(snapshot, question.credentials))
        assert pinning.newest(question) is snapshot
    assert Counter(pinning.upstream.asked) == Counter(questions * 2)


def test_keys_do_not_wait_for_each_other(pinning: Pinning) -> None:
    pinning.upstream.held = []
    Outcome(pinning.snapshots.get(KEY))
    pinning.upstream.held = None
    assert pinning.newest(OTHERS[2]).key == OTHERS[2].key


# Revalidation.


def test_equal_answer_with_another_token_keeps_the_bytes(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    for number in range(1, 6):
        pinning.clock.advance(TTL)
        assert pinning.newest() is snapshot
        assert pinning.rounds == number + 1
        assert pinning.snapshots.get_cached_snapshot(KEY.key) is snapshot
    assert pinning.config(snapshot) == config
    assert pinning.counted["unchanged"] == 5


def test_many_requests_wait_for_one_revalidation(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    new = [Outcome(pinning.snapshots.get(KEY)) for _ in range(100)]
    going_on = [Outcome(pinning.snapshots.revalidate(snapshot, None)) for _ in range(100)]
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS - MOMENT)
    assert not any(asker.has_fired for asker in new)
    assert not any(asker.has_fired for asker in going_on)
    pinning.upstream.release()
    assert {id(asker.value) for asker in new} == {id(snapshot)}
    assert all(asker.has_fired for asker in going_on)
    assert pinning.rounds == 2
    assert pinning.clock.getDelayedCalls() == []


def test_slow_revalidation_serves_the_old_snapshot_after_a_second(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    new, going_on = (
        Outcome(pinning.snapshots.get(KEY)),
        Outcome(pinning.snapshots.revalidate(snapshot, None)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert new.value is snapshot
    assert going_on.value is None
    pinning.upstream.text = "changed"
    pinning.upstream.release()
    renewed = pinning.snapshots.get_cached_snapshot(KEY.key)
    assert renewed is not None
    assert renewed.generation == 2
    assert pinning.rounds == 2
    outcome(pinning.snapshots.revalidate(snapshot, None))


def test_revalidation_timeout_starts_with_the_revalidation(pinning: Pinning) -> None:
    """Else a mount would get a range in a second for as long as assisted-service hangs."""
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS * 0.7)
    going_on, new = (
        Outcome(pinning.snapshots.revalidate(snapshot, None)),
        Outcome(pinning.snapshots.get(KEY)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS * 0.3 - MOMENT)
    assert (going_on.has_fired, new.has_fired) == (False, False)
    pinning.clock.advance(MOMENT)
    assert (going_on.has_fired, new.has_fired) == (True, True)
    for _ in range(1000):
        outcome(pinning.snapshots.revalidate(snapshot, None))
        assert pinning.newest() is snapshot
    assert pinning.rounds == 2
    assert len(pinning.clock.getDelayedCalls()) < 10


def test_abandoned_revalidation_serves_the_next_request(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(30)
    pinning.upstream.release()
    assert pinning.snapshots.get_cached_snapshot(KEY.key) is snapshot
    assert pinning.rounds == 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("changed", {}),
        ("", {"modified": datetime(2025, 1, 1, tzinfo=UTC)}),
        ("", {"ramdisk": b"070701"}),
        ("", {"kernel_arguments": (KernelArgument(Operation.APPEND, "quiet"),)}),
    ],
)
def test_change_is_a_new_generation_and_mounts_keep_theirs(
    pinning: Pinning, text: str, parts: dict[str, Any]
) -> None:
    first = pinning.newest()
    config = pinning.config(first)
    pinning.upstream.text, pinning.upstream.parts = text, parts
    pinning.clock.advance(TTL)
    second = pinning.newest()
    assert (first.generation, second.generation) == (1, 2)
    assert pinning.config(second) != config
    for _ in range(10):
        outcome(pinning.snapshots.revalidate(first, None))
        assert pinning.config(first) == config
        assert pinning.newest() is second
        pinning.clock.advance(TTL)


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_generations_count_the_changes(texts: list[str]) -> None:
    pinning = Pinning()
    expected, before = 0, None
    for text in texts:
        pinning.upstream.text = text
        expected += text != before
        before = text
        snapshot = pinning.newest()
        assert snapshot.generation == expected
        assert f'"text": "{text}"'.encode() in pinning.config(snapshot)
        pinning.clock.advance(TTL)
    assert pinning.rounds == len(texts)


# A refusal.


@pytest.mark.parametrize("error", REFUSING)
def test_nothing_is_served_while_refused_and_the_same_after(
    pinning: Pinning, error: ImageServiceError
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    second = pinning.newest()
    configs = [pinning.config(snapshot) for snapshot in (first, second)]
    pinning.clock.advance(TTL)
    pinning.upstream.error = error
    for process in (pinning, pinning, pinning.restarted()):
        for snapshot in (first, second):
            with pytest.raises(type(error)):
                outcome(process.snapshots.revalidate(snapshot, None))
        with pytest.raises(type(error)):
            process.newest()
        assert not process.may_continue(first)
        assert process.snapshots.get_cached_snapshot(KEY.key) is None
    assert pinning.rounds == 4, "once in each process"
    pinning.upstream.error = None
    for process in (pinning, pinning.restarted()):
        with pytest.raises((type(error), Unavailable)):
            pinning.newest()
        pinning.clock.advance(RETRY_SECONDS)
        assert process.config(process.newest()) == configs[1]
        older = outcome(process.snapshots.find_generation(KEY, 1))
        assert older is not None
        assert process.config(older) == configs[0]
        outcome(process.snapshots.revalidate(older, None))
        pinning.clock.advance(TTL)
        pinning.upstream.error = error
        with pytest.raises(type(error)):
            pinning.newest()
        pinning.upstream.error = None


def test_other_answer_after_a_refusal_loses_all_older_ones(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = Unauthorized("expired")
    with pytest.raises(Unauthorized):
        pinning.newest()
    pinning.upstream.error, pinning.upstream.text = None, "changed"
    pinning.clock.advance(RETRY_SECONDS)
    second = pinning.newest()
    assert second.generation == 2, "nobody may take it for the one that was refused"
    with pytest.raises(VersionLost):
        outcome(pinning.snapshots.revalidate(first, None))
    assert not pinning.may_continue(first)
    assert outcome(pinning.snapshots.load(first)) is None
    outcome(pinning.snapshots.revalidate(second, None))


def test_failure_takes_no_refusal_back(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    for error in (Forbidden("403"), UpstreamError("502"), UpstreamTimeout("504"), Conflict("409")):
        pinning.upstream.error = error
        with pytest.raises(type(error)):
            outcome(pinning.snapshots.revalidate(first, None))
        pinning.clock.advance(RETRY_SECONDS)
        assert pinning.snapshots.in_grace == 0
    after = pinning.restarted()
    pinning.upstream.error = UpstreamError("502")
    with pytest.raises(UpstreamError):
        after.newest()


def test_refusal_without_a_call_slot_stays_one(pinning: Pinning) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    for error in (Forbidden("403"), UpstreamQueueFull("busy")):
        pinning.upstream.error = error
        with pytest.raises(type(error)):
            pinning.newest()
        pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = None
    assert pinning.newest().generation == 1


def test_end_is_raised_in_all_waiting_requests(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], Forbidden("no longer")
    going_on = [Outcome(pinning.snapshots.revalidate(snapshot, None)) for _ in range(3)]
    new = [Outcome(pinning.snapshots.get(KEY)) for _ in range(3)]
    pinning.upstream.release()
    assert [type(waiter.error) for waiter in going_on] == [Forbidden] * 3
    assert [type(waiter.error) for waiter in new] == [Forbidden] * 3
    assert pinning.rounds == 2


def test_mount_served_during_revalidation_ends_with_a_refusal(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], NotFound("gone")
    going_on = Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    pinning.upstream.release()
    with pytest.raises(NotFound, match="gone"):
        outcome(pinning.snapshots.revalidate(snapshot, None))


@pytest.mark.parametrize("error", REFUSING)
def test_first_refusal_is_remembered_for_five_seconds(pinning: Pinning, error: ImageServiceError) -> None:
    pinning.upstream.error = error
    for _ in range(100):
        with pytest.raises(type(error), match=error.detail):
            pinning.newest()
        pinning.clock.advance(4.9 / 100)
    assert pinning.rounds == 1
    for question in OTHERS:
        Outcome(pinning.snapshots.get(question))
    assert pinning.rounds == 1 + len(OTHERS)
    pinning.clock.advance(0.1)
    pinning.upstream.error = None
    assert pinning.newest().generation == 1


@pytest.mark.parametrize("error", [*FAILING, UpstreamQueueFull("busy")])
def test_first_failure_is_not_remembered(pinning: Pinning, error: Exception) -> None:
    pinning.upstream.error = error
    for _ in range(3):
        with pytest.raises(type(error)):
            pinning.newest()
    assert pinning.rounds == 3
