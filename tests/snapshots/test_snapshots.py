from __future__ import annotations

import traceback
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from image_service.coreos.kargs import KernelArgument, Operation
from image_service.errors import (
    Conflict,
    Forbidden,
    IgnitionInvalid,
    ImageServiceError,
    NotFound,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.images.reference import Credentials, CredentialScheme, Kind
from image_service.snapshots import cache
from image_service.snapshots import snapshots as snapshots_module
from image_service.snapshots.memory import MemoryRepository
from image_service.snapshots.model import MAX_OLDER, RETRY_SECONDS, SnapshotKey
from image_service.snapshots.snapshots import REVALIDATION_TIMEOUT_SECONDS
from tests.snapshots.pinning import ID, QUESTION, SETTINGS, Outcome, Pinning, credentials_of, outcome

if TYPE_CHECKING:
    from tests.conftest import LoggedFailures

TTL, GRACE, MAX_AGE = SETTINGS.ttl_seconds, SETTINGS.grace_seconds, SETTINGS.max_age_seconds
MOMENT = 0.01
ENDING = [Unauthorized("401"), Forbidden("403"), NotFound("404")]
FAILING = [UpstreamError("down"), UpstreamTimeout("slow"), Unavailable("429"), KeyError("nobody foresaw it")]
REFUSING = [Conflict("409"), IgnitionInvalid("422")]
OTHERS = [
    SnapshotKey(ID.replace("a", "b"), Kind.FULL_ISO, None),
    SnapshotKey(ID, Kind.MINIMAL_ISO, None),
    SnapshotKey.of(ID, Kind.FULL_ISO, Credentials(CredentialScheme.API_KEY, "one")),
    SnapshotKey.of(ID, Kind.FULL_ISO, Credentials(CredentialScheme.API_KEY, "two")),
    SnapshotKey.of(ID, Kind.FULL_ISO, Credentials(CredentialScheme.IMAGE_TOKEN, "one")),
]


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


def of(error: BaseException) -> type[BaseException]:
    """What becomes of an error where it is kept: nobody is told what nobody foresaw."""
    return type(error) if isinstance(error, ImageServiceError) else ImageServiceError


# Within the TTL.


def test_an_answer_is_pinned_and_not_asked_for_again_within_the_ttl(pinning: Pinning) -> None:
    assert pinning.snapshots.get_cached(QUESTION) is None
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.newest() is snapshot
    assert pinning.snapshots.get_cached(QUESTION) is snapshot
    assert pinning.may_go_on(snapshot)
    outcome(pinning.snapshots.revalidate(snapshot, None))
    assert pinning.config(snapshot) == config
    assert pinning.upstream.asked == [QUESTION]
    pinning.clock.advance(MOMENT)
    assert pinning.snapshots.get_cached(QUESTION) is None
    assert not pinning.may_go_on(snapshot)


def test_the_ttl_begins_with_the_answer(pinning: Pinning) -> None:
    pinning.upstream.held = []
    asked = Outcome(pinning.snapshots.get(QUESTION, None))
    pinning.clock.advance(TTL)
    pinning.upstream.let_go()
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.snapshots.get_cached(QUESTION) is asked.value


def test_two_hundred_askers_make_one_round(pinning: Pinning) -> None:
    pinning.upstream.held = []
    askers = [Outcome(pinning.snapshots.get(QUESTION, None)) for _ in range(200)]
    assert not any(asker.is_there for asker in askers)
    pinning.upstream.let_go()
    assert {id(asker.value) for asker in askers} == {id(pinning.newest())}
    assert pinning.rounds == 1


def test_a_first_failure_is_shared_by_those_who_waited_and_by_nobody_else(pinning: Pinning) -> None:
    pinning.upstream.held, pinning.upstream.error = [], UpstreamError("no")
    askers = [Outcome(pinning.snapshots.get(QUESTION, None)) for _ in range(3)]
    pinning.upstream.let_go()
    assert [type(asker.error) for asker in askers] == [UpstreamError] * 3
    pinning.upstream.error = None
    assert pinning.newest().generation == 1
    assert pinning.rounds == 2


@pytest.mark.parametrize("error", [*ENDING, *FAILING, *REFUSING])
def test_without_a_snapshot_every_error_is_told_and_none_is_pinned(
    pinning: Pinning, error: Exception
) -> None:
    pinning.upstream.error = error
    with pytest.raises(type(error)):
        pinning.newest()
    pinning.clock.advance(5)
    pinning.upstream.error = None
    assert pinning.newest().generation == 1


def test_questions_share_nothing(pinning: Pinning) -> None:
    questions = [QUESTION, *OTHERS]
    snapshots = [pinning.newest(question) for question in questions]
    assert len({pinning.config(snapshot) for snapshot in snapshots}) == len(questions)
    pinning.upstream.error = Forbidden("not these")
    pinning.clock.advance(TTL)
    with pytest.raises(Forbidden):
        pinning.newest()
    pinning.upstream.error = None
    for question, snapshot in zip(OTHERS, snapshots[1:], strict=True):
        outcome(pinning.snapshots.revalidate(snapshot, credentials_of(question)))
        assert pinning.newest(question) is snapshot
    assert Counter(pinning.upstream.asked) == Counter(questions * 2)


def test_one_question_does_not_wait_for_another(pinning: Pinning) -> None:
    pinning.upstream.held = []
    Outcome(pinning.snapshots.get(QUESTION, None))
    pinning.upstream.held = None
    assert pinning.newest(OTHERS[2]).key == OTHERS[2]


# Revalidation.


def test_the_same_with_another_token_keeps_the_bytes(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    for number in range(1, 6):
        pinning.clock.advance(TTL)
        assert pinning.newest() is snapshot
        assert pinning.rounds == number + 1
        assert pinning.snapshots.get_cached(QUESTION) is snapshot
    assert pinning.config(snapshot) == config
    assert pinning.counted["unchanged"] == 5


def test_many_wait_for_one_revalidation(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    new = [Outcome(pinning.snapshots.get(QUESTION, None)) for _ in range(100)]
    going_on = [Outcome(pinning.snapshots.revalidate(snapshot, None)) for _ in range(100)]
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS - MOMENT)
    assert not any(asker.is_there for asker in new)
    assert not any(asker.is_there for asker in going_on)
    pinning.upstream.let_go()
    assert {id(asker.value) for asker in new} == {id(snapshot)}
    assert all(asker.is_there for asker in going_on)
    assert pinning.rounds == 2
    assert pinning.clock.getDelayedCalls() == []


def test_who_waits_a_second_gets_what_is_pinned_while_asking_goes_on(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    new, going_on = (
        Outcome(pinning.snapshots.get(QUESTION, None)),
        Outcome(pinning.snapshots.revalidate(snapshot, None)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert new.value is snapshot
    assert going_on.value is None
    pinning.upstream.text = "changed"
    pinning.upstream.let_go()
    renewed = pinning.snapshots.get_cached(QUESTION)
    assert renewed is not None
    assert renewed.generation == 2
    assert pinning.rounds == 2
    outcome(pinning.snapshots.revalidate(snapshot, None))


def test_a_moment_is_counted_from_when_the_revalidation_began(pinning: Pinning) -> None:
    """Else a mount would get a range in a second for as long as assisted-service hangs."""
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS * 0.7)
    going_on, new = (
        Outcome(pinning.snapshots.revalidate(snapshot, None)),
        Outcome(pinning.snapshots.get(QUESTION, None)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS * 0.3 - MOMENT)
    assert (going_on.is_there, new.is_there) == (False, False)
    pinning.clock.advance(MOMENT)
    assert (going_on.is_there, new.is_there) == (True, True)
    for _ in range(1000):
        outcome(pinning.snapshots.revalidate(snapshot, None))
        assert pinning.newest() is snapshot
    assert pinning.rounds == 2
    assert len(pinning.clock.getDelayedCalls()) < 10


def test_a_revalidation_that_all_have_left_is_good_for_the_next(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held = []
    Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(30)
    pinning.upstream.let_go()
    assert pinning.snapshots.get_cached(QUESTION) is snapshot
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
def test_a_change_is_a_new_generation_and_mounts_keep_theirs(
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


# The end.


@pytest.mark.parametrize("error", ENDING)
def test_a_refusal_of_who_asks_ends_all_generations_at_once(
    pinning: Pinning, error: ImageServiceError
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    second = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = error
    for _ in range(2):
        with pytest.raises(type(error)):
            outcome(pinning.snapshots.revalidate(first, None))
        with pytest.raises(type(error)):
            outcome(pinning.snapshots.revalidate(second, None))
        with pytest.raises(type(error)):
            pinning.newest()
        with pytest.raises(type(error)):
            outcome(pinning.snapshots.find_generation(QUESTION, None, 1))
        assert first.is_ended
        assert second.is_ended
        assert not pinning.may_go_on(first)
        assert pinning.snapshots.get_cached(QUESTION) is None
    for snapshot in (first, second):
        assert outcome(pinning.snapshots.load(snapshot, None)) is None
    assert pinning.restarted().newest_stored() is None


def test_the_end_is_told_to_all_who_wait(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], Forbidden("no longer")
    going_on = [Outcome(pinning.snapshots.revalidate(snapshot, None)) for _ in range(3)]
    new = [Outcome(pinning.snapshots.get(QUESTION, None)) for _ in range(3)]
    pinning.upstream.let_go()
    assert [type(waiter.error) for waiter in going_on] == [Forbidden] * 3
    assert [type(waiter.error) for waiter in new] == [Forbidden] * 3
    assert pinning.rounds == 2


def test_who_was_served_what_is_pinned_meanwhile_is_cut_off_then(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], NotFound("gone")
    going_on = Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    pinning.upstream.let_go()
    with pytest.raises(NotFound, match="gone"):
        outcome(pinning.snapshots.revalidate(snapshot, None))


def test_after_the_end_an_old_mount_does_not_go_on_even_if_the_infra_env_is_back(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = Unauthorized("expired")
    with pytest.raises(Unauthorized):
        pinning.newest()
    pinning.upstream.error = None
    second = pinning.newest()
    assert second.generation == 2, "nobody may take it for the one that has ended"
    with pytest.raises(NotFound):
        outcome(pinning.snapshots.revalidate(first, None))
    assert not pinning.may_go_on(first)
    outcome(pinning.snapshots.revalidate(second, None))


def test_what_is_not_there_is_not_asked_for_again_for_a_while(pinning: Pinning) -> None:
    pinning.upstream.error = NotFound("no such infra-env")
    for _ in range(100):
        with pytest.raises(NotFound, match="no such infra-env"):
            pinning.newest()
        pinning.clock.advance(4.9 / 100)
    assert pinning.rounds == 1
    for question in OTHERS:
        Outcome(pinning.snapshots.get(question, None))
    assert pinning.rounds == 1 + len(OTHERS)
    pinning.clock.advance(0.1)
    pinning.upstream.error = None
    assert pinning.newest().generation == 1


def test_other_refusals_are_not_remembered(pinning: Pinning) -> None:
    for error in (Unauthorized("401"), Forbidden("403"), Conflict("409"), UpstreamError("502")):
        pinning.upstream.error = error
        with pytest.raises(type(error)):
            pinning.newest()
    assert pinning.rounds == 4


# The grace.


def failing_at(pinning: Pinning, error: Exception, logged_failures: LoggedFailures) -> list[str]:
    """Ask once more, and give the warnings of it."""
    pinning.upstream.error = error
    with capturedLogs() as events:
        pinning.newest()
    logged_failures.flush(KeyError)
    return [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]


@pytest.mark.parametrize("error", FAILING)
def test_while_asking_fails_what_is_pinned_is_served_for_the_grace(
    pinning: Pinning, error: Exception, logged_failures: LoggedFailures
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    assert len(failing_at(pinning, error, logged_failures)) == 1
    for _ in range(int(GRACE / 10)):
        assert failing_at(pinning, error, logged_failures) == []
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


def test_the_grace_ends_when_it_ends(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(GRACE - MOMENT)
    pinning.newest()
    assert pinning.snapshots.in_grace == 1
    pinning.clock.advance(MOMENT)
    assert pinning.snapshots.in_grace == 0, "even if nobody asks any more"
    with pytest.raises(UpstreamError):
        pinning.newest()


def test_the_error_after_the_grace_is_the_latest(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("first", retry_after_seconds=9), logged_failures)
    pinning.clock.advance(GRACE)
    pinning.upstream.error = UpstreamTimeout("find_newest", retry_after_seconds=7)
    with pytest.raises(UpstreamTimeout, match="find_newest") as raised:
        pinning.newest()
    assert raised.value.retry_after_seconds == 7


def test_while_asking_fails_it_is_not_tried_all_the_time(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    for _ in range(10):
        pinning.newest()
        outcome(pinning.snapshots.revalidate(snapshot, None))
        assert pinning.rounds == 2
        pinning.clock.advance(RETRY_SECONDS / 10)
    pinning.newest()
    assert pinning.rounds == 3


def test_a_recovery_ends_it_and_the_next_failure_has_a_grace_and_a_warning_of_its_own(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    first = pinning.newest()
    for _ in range(3):
        pinning.clock.advance(TTL)
        assert len(failing_at(pinning, UpstreamError("no"), logged_failures)) == 1
        pinning.clock.advance(GRACE - 1)
        pinning.upstream.error = None
        assert pinning.newest() is first
        assert pinning.snapshots.get_cached(QUESTION) is first


def test_a_change_after_a_failure_is_seen(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    pinning.upstream.error, pinning.upstream.text = None, "changed"
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest().generation == 2


def test_a_refusal_within_the_grace_ends_it(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        outcome(pinning.snapshots.revalidate(snapshot, None))


def test_what_nobody_foresaw_is_logged_even_where_nobody_waits(
    pinning: Pinning, logged_failures: LoggedFailures
) -> None:
    snapshot = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], KeyError("odd")
    going_on = Outcome(pinning.snapshots.revalidate(snapshot, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    pinning.upstream.let_go()
    assert len(logged_failures.flush(KeyError)) == 1


# The age.


def test_after_its_age_an_unchanged_answer_is_a_new_generation_for_new_mounts(pinning: Pinning) -> None:
    first = pinning.newest()
    config = pinning.config(first)
    for _ in range(int(MAX_AGE / TTL) - 1):
        pinning.clock.advance(TTL)
        assert pinning.newest() is first
    pinning.clock.advance(TTL - MOMENT)
    assert pinning.snapshots.get_cached(QUESTION) is first
    pinning.clock.advance(MOMENT)
    second = pinning.newest()
    assert second.generation == 2
    assert pinning.config(second) != config
    outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.config(first) == config


def test_it_is_too_old_even_where_it_was_just_validated(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(MAX_AGE - 1)
    assert pinning.newest() is first
    pinning.clock.advance(1)
    assert pinning.may_go_on(first)
    assert pinning.snapshots.get_cached(QUESTION) is None
    assert pinning.newest().generation == 2


@pytest.mark.parametrize("error", FAILING[:3])
def test_while_asking_fails_what_is_too_old_is_for_mounts_in_progress_alone(
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


def test_while_asking_is_slow_too(pinning: Pinning) -> None:
    """A new mount waits for as long as its request may; one in progress for a moment."""
    first = pinning.newest()
    pinning.clock.advance(MAX_AGE)
    pinning.upstream.held = []
    new, going_on = (
        Outcome(pinning.snapshots.get(QUESTION, None)),
        Outcome(pinning.snapshots.revalidate(first, None)),
    )
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert (new.is_there, going_on.is_there) == (False, True)
    later = Outcome(pinning.snapshots.get(QUESTION, None))
    pinning.clock.advance(10)
    assert (new.is_there, later.is_there) == (False, False)
    pinning.upstream.let_go()
    assert new.value is later.value
    assert new.value.generation == 2
    assert pinning.rounds == 2


# A state that assisted-service gives no image for.


@pytest.mark.parametrize("error", REFUSING)
def test_a_refusal_for_the_infra_env_s_state_is_for_new_mounts_alone(
    pinning: Pinning, error: ImageServiceError
) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = error
    for _ in range(100):
        with pytest.raises(type(error)):
            pinning.newest()
        outcome(pinning.snapshots.revalidate(first, None))
        assert pinning.snapshots.get_cached(QUESTION) is None
    assert pinning.rounds == 2, "who asks again and again is told the same for a while"
    for _ in range(5):
        pinning.clock.advance(GRACE)
        outcome(pinning.snapshots.revalidate(first, None))
    pinning.upstream.error = None
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest().generation in {1, 2}
    assert pinning.config(first)


def test_a_corrected_infra_env_is_served_again(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = IgnitionInvalid("422")
    with pytest.raises(IgnitionInvalid):
        pinning.newest()
    pinning.upstream.error = None
    pinning.clock.advance(RETRY_SECONDS)
    assert pinning.newest() is first


def test_a_refusal_is_an_answer_and_no_failure(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    first = pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    pinning.clock.advance(RETRY_SECONDS)
    pinning.upstream.error = Conflict("409")
    with pytest.raises(Conflict):
        pinning.newest()
    pinning.clock.advance(GRACE)
    outcome(pinning.snapshots.revalidate(first, None))


# The process that follows.


def test_a_restart_asks_nothing_within_the_ttl_and_serves_the_same_bytes(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.clock.advance(TTL - MOMENT)
    after = pinning.restarted()
    restored = after.newest()
    assert after.config(restored) == config
    assert restored.generation == 1
    assert after.snapshots.get_cached(QUESTION) is restored
    assert pinning.rounds == 2
    after.clock.advance(MOMENT)
    assert after.newest() is restored
    assert pinning.rounds == 3


def test_a_restart_knows_the_age(pinning: Pinning) -> None:
    pinning.newest()
    pinning.clock.advance(MAX_AGE)
    assert pinning.restarted().newest().generation == 2


def test_a_restart_finds_what_mounts_were_reading(pinning: Pinning) -> None:
    first = pinning.newest()
    config = pinning.config(first)
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    second = pinning.newest()
    after = pinning.restarted()
    restored = outcome(after.snapshots.find_generation(QUESTION, None, 1))
    assert restored is not None
    assert after.config(restored) == config
    assert after.may_go_on(restored)
    assert outcome(after.snapshots.find_generation(QUESTION, None, 1)) is restored
    newest = outcome(after.snapshots.find_generation(QUESTION, None, 2))
    assert newest is after.newest()
    assert after.config(newest) == pinning.config(second)
    assert outcome(after.snapshots.find_generation(QUESTION, None, 3)) is None
    after.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        outcome(after.snapshots.revalidate(restored, None))


def test_many_who_read_the_same_share_it(pinning: Pinning) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    after = pinning.restarted()
    after.newest()
    gate: Deferred[None] = Deferred()
    after.store.gate = gate
    found = [Outcome(after.snapshots.find_generation(QUESTION, None, 1)) for _ in range(100)]
    after.store.gate = None
    gate.callback(None)
    assert len({id(one.value) for one in found}) == 1


def test_a_clock_that_was_set_back_keeps_nothing_alive(pinning: Pinning) -> None:
    pinning.newest()
    after = pinning.restarted()
    after.clock.rightNow -= 1000
    after.newest()
    after.clock.advance(TTL)
    assert after.snapshots.get_cached(QUESTION) is None


# Two processes and one store.


def test_two_processes_serve_what_the_faster_one_got(pinning: Pinning) -> None:
    other = pinning.restarted()
    pinning.upstream.held = []
    asked = [Outcome(each.snapshots.get(QUESTION, None)) for each in (pinning, other)]
    pinning.upstream.let_go()
    one, two = (asker.value for asker in asked)
    assert pinning.config(one) == other.config(two)
    assert pinning.rounds == 2
    for text in ("changed", "changed again"):
        pinning.upstream.text = text
        pinning.clock.advance(TTL)
        assert pinning.config(pinning.newest()) == other.config(other.newest())
    assert pinning.newest().generation == 3


def test_a_process_that_was_asleep_takes_what_the_other_has_only_where_it_is_the_same(
    pinning: Pinning,
) -> None:
    pinning.newest()
    other = pinning.restarted()
    other.newest()
    for text in ("b", "c"):
        pinning.upstream.text = text
        pinning.clock.advance(TTL)
        pinning.newest()
    pinning.upstream.text = "d"
    assert other.newest().generation == 4
    pinning.clock.advance(TTL)
    assert pinning.config(pinning.newest()) == other.config(other.newest())


def test_what_the_other_got_long_ago_is_not_for_new_mounts(pinning: Pinning) -> None:
    pinning.newest()
    other = pinning.restarted()
    other.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    pinning.clock.advance(MAX_AGE)
    assert other.newest().generation == 3


def test_the_end_in_one_process_is_the_end_in_the_other_after_its_ttl(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    other = pinning.restarted()
    other.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    for each in (pinning, other):
        with pytest.raises(Forbidden):
            each.newest()
        with pytest.raises(Forbidden):
            outcome(each.snapshots.revalidate(snapshot, None))


# A store that fails or loses what it had.

METHODS = ("find_newest", "load", "add", "record_validation", "end")


@pytest.mark.parametrize("broken", [*((method,) for method in METHODS), METHODS])
@pytest.mark.parametrize("from_the_start", [True, False])
def test_whatever_the_store_does_the_service_goes_on(
    pinning: Pinning, broken: tuple[str, ...], *, from_the_start: bool
) -> None:
    if from_the_start:
        pinning.store.broken.update(broken)
    first = pinning.newest()
    config = pinning.config(first)
    pinning.store.broken.update(broken)
    pinning.clock.advance(TTL)
    assert pinning.newest() is first
    pinning.upstream.text = "changed"
    pinning.clock.advance(TTL)
    second = pinning.newest()
    assert second is not first
    outcome(pinning.snapshots.revalidate(first, None))
    assert (pinning.config(first), pinning.config(second) != config) == (config, True)
    pinning.clock.advance(MAX_AGE)
    third = pinning.newest()
    assert len({first.generation, second.generation, third.generation}) == 3
    pinning.upstream.error = Forbidden("no longer")
    pinning.clock.advance(TTL)
    for snapshot in (first, second, third):
        with pytest.raises(Forbidden):
            outcome(pinning.snapshots.revalidate(snapshot, None))
        with pytest.raises(Forbidden):
            pinning.newest()
    assert pinning.rounds >= 6


def test_what_the_store_has_lost_is_asked_for_anew(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.archive.forget(first)
    pinning.store.store = MemoryRepository()  # as where the file was damaged, and made anew
    assert outcome(pinning.snapshots.load(first, None)) is None
    second = pinning.newest()
    assert second.generation == 2, "or the bytes of one could be taken for those of the other"
    assert pinning.config(second)
    assert outcome(pinning.snapshots.load(first, None)) is None
    outcome(pinning.snapshots.revalidate(first, None))


def test_what_is_lost_and_cannot_be_asked_for_is_told(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.archive.forget(first)
    pinning.store.store = MemoryRepository()
    outcome(pinning.snapshots.load(first, None))
    pinning.upstream.error = UpstreamTimeout("no")
    with pytest.raises(UpstreamTimeout):
        pinning.newest()


# Bounds.


def cached(pinning: Pinning) -> list[SnapshotKey]:
    return [key for key in (QUESTION, *OTHERS) if pinning.snapshots.get_cached(key)]


def test_pins_that_make_room_are_found_again_and_end_with_their_mounts(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    config = pinning.config(first)
    for question in OTHERS:
        pinning.newest(question)
    assert not pinning.may_go_on(first)
    again = pinning.newest()
    assert (again is not first, pinning.config(again)) == (True, config)
    outcome(pinning.snapshots.revalidate(first, None))
    assert pinning.may_go_on(first)
    assert pinning.rounds == 1 + len(OTHERS)
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        pinning.newest()
    assert not pinning.may_go_on(first)
    with pytest.raises(Forbidden):
        outcome(pinning.snapshots.revalidate(first, None))


def test_a_mount_whose_pin_made_room_does_not_go_on_after_an_end_that_it_did_not_see(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 1)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    pinning.newest(OTHERS[0])
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        pinning.newest()
    pinning.upstream.error = None
    pinning.newest()
    assert not pinning.may_go_on(first)
    with pytest.raises(NotFound):
        outcome(pinning.snapshots.revalidate(first, None))


def test_what_is_renewed_is_the_last_to_make_room(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    pinning.__attrs_post_init__()
    pinning.newest()
    pinning.newest(OTHERS[0])
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    pinning.newest(OTHERS[1])
    assert cached(pinning) == [QUESTION, OTHERS[1]]
    assert pinning.snapshots.get_cached(QUESTION)
    pinning.newest(OTHERS[2])
    assert cached(pinning) == [QUESTION, OTHERS[2]]


def test_the_end_reaches_who_came_while_it_was_being_asked_for(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin may make room, and be found again, in the midst of its own revalidation."""
    monkeypatch.setattr(cache, "MAX_ENTRIES", 1)
    pinning.__attrs_post_init__()
    first = pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.held, pinning.upstream.error = [], Forbidden("no longer")
    going_on = Outcome(pinning.snapshots.revalidate(first, None))
    pinning.upstream.error, held, pinning.upstream.held = None, pinning.upstream.held, None
    pinning.newest(OTHERS[0])
    again = Outcome(pinning.snapshots.get(QUESTION, None))
    pinning.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert going_on.value is None
    assert again.value is not first
    pinning.upstream.error = Forbidden("no longer")
    held[0].callback(None)
    for snapshot in (first, again.value):
        assert not pinning.may_go_on(snapshot)
        assert snapshot.is_ended


def test_older_generations_are_bounded(pinning: Pinning) -> None:
    pinning.upstream.text = "0"
    first = pinning.newest()
    for number in range(30):
        pinning.upstream.text = str(number)
        pinning.newest()
        pinning.clock.advance(TTL)
    entry = pinning.newest().entry
    assert entry is not None
    assert [snapshot.generation for snapshot in entry.older] == list(range(29, 29 - MAX_OLDER, -1))
    assert first.entry is entry, "a mount that reads the first one ends with all"
    after = pinning.restarted()
    for generation in range(30, 0, -1):
        outcome(after.snapshots.find_generation(QUESTION, None, generation))
    entry = after.newest().entry
    assert entry is not None
    assert len(entry.older) <= MAX_OLDER


def test_questions_without_end_are_not_asked_at_once(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MAX_ASKING", 3)
    pinning.__attrs_post_init__()
    pinning.upstream.held = []
    asked = [Outcome(pinning.snapshots.get(question, None)) for question in OTHERS[:3]]
    with pytest.raises(Unavailable) as raised:
        pinning.newest()
    assert raised.value.retry_after_seconds
    joined = Outcome(pinning.snapshots.get(OTHERS[0], credentials_of(OTHERS[0])))
    assert pinning.rounds == 3
    pinning.upstream.let_go()
    assert joined.value is asked[0].value
    assert pinning.newest().generation == 1


@pytest.mark.parametrize("seconds", [MAX_AGE, TTL])
@pytest.mark.parametrize("error", [Conflict("409"), UpstreamError("502"), NotFound("404")])
def test_what_is_told_again_and_again_does_not_grow(
    pinning: Pinning, error: ImageServiceError, seconds: float
) -> None:
    """Nor does what is kept of it keep alive what it came through."""
    entry = pinning.newest().entry
    assert entry is not None
    pinning.clock.advance(seconds)
    pinning.upstream.error = error
    Outcome(pinning.snapshots.get(QUESTION, None))
    kept = entry.error or entry.refusal
    if kept is not None:
        assert kept.__traceback__ is None
        entry.failing_since = 0.0 if entry.error else None
    assert entry.is_ended is (kept is None)
    lengths = set()
    for _ in range(20):
        with pytest.raises(type(error)) as raised:
            pinning.newest()
        lengths.add(len(traceback.extract_tb(raised.value.__traceback__)))
        assert raised.value.__context__ is None
    assert len(lengths) == 1
    assert pinning.rounds == 2


def test_no_secret_is_in_what_is_logged_or_shown(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    question = OTHERS[2]
    pinning.upstream.text = "s3cr3t-text"
    with capturedLogs() as events:
        first = pinning.newest(question)
        for error in (UpstreamError("no"), KeyError("odd"), Conflict("409"), Forbidden("no")):
            pinning.clock.advance(TTL)
            pinning.upstream.error = error
            Outcome(pinning.snapshots.get(question, None))
    logged_failures.flush(KeyError)
    assert question.credentials_digest is not None
    for told in (
        repr(first),
        repr(question),
        repr(first.entry),
        *map(formatEvent, events),
    ):
        assert "s3cr3t" not in told
        assert "'one'" not in told
    assert pinning.snapshots.get_cached(question) is None


def test_what_happens_is_counted(pinning: Pinning, logged_failures: LoggedFailures) -> None:
    pinning.newest()
    pinning.snapshots.get_cached(QUESTION)
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.upstream.text = "changed"
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.clock.advance(TTL)
    failing_at(pinning, UpstreamError("no"), logged_failures)
    pinning.upstream.error = Forbidden("no")
    pinning.clock.advance(RETRY_SECONDS)
    Outcome(pinning.snapshots.get(QUESTION, None))
    assert pinning.counted == {
        "miss": 1,
        "hit": 1,
        "unchanged": 1,
        "changed": 1,
        "failed": 1,
        "grace": 1,
        "ended": 1,
    }
