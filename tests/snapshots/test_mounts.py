from __future__ import annotations

import hashlib
from itertools import takewhile
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.images.reference import Credentials, CredentialScheme, ImageRef, Kind, Reader
from image_service.snapshots import mounts as mounts_module
from image_service.snapshots.mounts import Mount, Mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 60.0
MOMENT = 0.01
REF = ImageRef("a6c0ff12-3456-4789-8abc-def012345678", "4.20", "x86_64", Kind.FULL_ISO)
READER = Reader("192.0.2.1", None, REF)
OTHERS = [
    Reader("192.0.2.2", None, REF),
    Reader("192.0.2.1", Credentials(CredentialScheme.API_KEY, "one"), REF),
    Reader("192.0.2.1", Credentials(CredentialScheme.IMAGE_TOKEN, "one"), REF),
    Reader("192.0.2.1", None, attrs.evolve(REF, kind=Kind.MINIMAL_ISO)),
]


def digest(reader: Reader) -> bytes:
    return hashlib.sha256(f"{reader} {reader.credentials and reader.credentials.secret}".encode()).digest()


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture
def mounts(clock: Clock) -> Mounts[str]:
    return Mounts(clock, WINDOW, digest)


def test_a_mount_is_in_progress_for_its_window_after_its_last_read(mounts: Mounts[str], clock: Clock) -> None:
    assert mounts.find(READER) is None
    for _ in range(3):
        mounts.begin(READER, "one")
        clock.advance(WINDOW)
        assert mounts.find(READER) == "one"
    clock.advance(MOMENT)
    assert mounts.find(READER) is None


def test_every_reader_has_its_own(mounts: Mounts[str]) -> None:
    mounts.begin(READER, "one")
    assert [mounts.find(other) for other in OTHERS] == [None] * len(OTHERS)
    for number, other in enumerate(OTHERS):
        mounts.begin(other, str(number))
    assert mounts.find(READER) == "one"


def test_an_answer_that_is_being_sent_keeps_it_in_progress(mounts: Mounts[str], clock: Clock) -> None:
    mount = mounts.begin(READER, "one")
    mount.answers += 2
    clock.advance(100 * WINDOW)
    mounts.end(mount)
    clock.advance(100 * WINDOW)
    assert mounts.find(READER) == "one"
    mounts.end(mount)
    clock.advance(WINDOW)
    assert mounts.find(READER) == "one"
    clock.advance(MOMENT)
    assert mounts.find(READER) is None


def test_who_reads_another_version_reads_that_from_now_on(mounts: Mounts[str], clock: Clock) -> None:
    first = mounts.begin(READER, "one")
    first.answers += 1
    second = mounts.begin(READER, "two")
    assert (mounts.find(READER), second.answers) == ("two", 0)
    clock.advance(WINDOW)
    mounts.end(first)
    clock.advance(MOMENT)
    assert mounts.find(READER) is None, "the end of an answer of the first is nothing to the second"


def test_an_equal_version_is_the_same_mount(clock: Clock) -> None:
    mounts: Mounts[list[int]] = Mounts(clock, WINDOW, digest)
    first = mounts.begin(READER, [1])
    assert mounts.begin(READER, [1]) is first


def test_what_is_recalled_was_read_when_it_was(mounts: Mounts[str], clock: Clock) -> None:
    mounts.learn(READER, "one", 0, clock.seconds() - WINDOW)
    assert mounts.find(READER) == "one"
    clock.advance(MOMENT)
    assert mounts.find(READER) is None
    mounts.begin(READER, "one")
    mounts.learn(READER, "one", 0, clock.seconds() - WINDOW)
    clock.advance(WINDOW)
    assert mounts.find(READER) == "one", "it has been read since"


# What is saved.


def saved(mounts: Mounts[str]) -> dict[Reader, tuple[str, float]]:
    return {reader: (mount.version, mount.read_at) for reader, mount in mounts.to_save()}


def test_each_is_saved_when_it_has_read_since_the_last_time(mounts: Mounts[str], clock: Clock) -> None:
    now = clock.seconds()
    mounts.begin(READER, "one")
    assert saved(mounts) == {READER: ("one", now)}
    assert saved(mounts) == {}
    clock.advance(10)
    assert saved(mounts) == {}
    mounts.begin(READER, "one")
    assert saved(mounts) == {READER: ("one", now + 10)}
    mounts.begin(READER, "two")
    assert saved(mounts) == {READER: ("two", now + 10)}


def test_one_that_is_being_sent_has_read_just_now(mounts: Mounts[str], clock: Clock) -> None:
    mount = mounts.begin(READER, "one")
    mount.answers += 1
    for _ in range(3):
        clock.advance(10 * WINDOW)
        assert saved(mounts) == {READER: ("one", clock.seconds())}
    mounts.end(mount)
    assert saved(mounts) == {}


def test_those_that_are_over_are_forgotten(mounts: Mounts[str], clock: Clock) -> None:
    mounts.begin(READER, "one")
    mounts.begin(OTHERS[0], "one")
    clock.advance(WINDOW + MOMENT)
    mounts.begin(OTHERS[0], "one")
    assert list(saved(mounts)) == [OTHERS[0]]
    assert list(mounts._mounts) == [OTHERS[0]]


def test_a_mount_may_begin_while_they_are_saved(mounts: Mounts[str]) -> None:
    mounts.begin(READER, "one")
    walk: Iterator[object] = mounts.to_save()
    next(walk)
    mounts.begin(OTHERS[0], "one")
    assert list(walk) == []
    assert list(saved(mounts)) == [OTHERS[0]]


# Bounds.


def test_the_one_that_has_not_read_for_longest_gives_way(
    mounts: Mounts[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts_module, "MAX_MOUNTS", 3)
    for reader in (READER, *OTHERS[:2]):
        mounts.begin(reader, "one")
    mounts.begin(READER, "one")
    mounts.begin(OTHERS[2], "one")
    found = [mounts.find(reader) for reader in (READER, *OTHERS[:3])]
    assert found == ["one", None, "one", "one"]


@attrs.define
class LoggedRequest:
    """An answer, as a naive account has it."""

    reader: Reader
    version: str
    mount: Mount[str]
    read_at: float
    is_over: bool = False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "wait", "save"]), st.integers(0, 90), st.sampled_from("ab")
        ),
        max_size=30,
    )
)
def test_it_does_as_a_naive_account_of_all_answers_would(steps: list[tuple[str, int, str]]) -> None:
    clock = Clock()
    mounts: Mounts[str] = Mounts(clock, WINDOW, digest)
    answers: list[LoggedRequest] = []
    for step, number, version in steps:
        if step == "begin":
            reader = OTHERS[number % 3]
            mount = mounts.begin(reader, version)
            mount.answers += 1
            answers.append(LoggedRequest(reader, version, mount, clock.seconds()))
        elif step == "end" and answers and not (ended := answers[number % len(answers)]).is_over:
            ended.is_over, ended.read_at = True, clock.seconds()
            mounts.end(ended.mount)
        elif step == "wait":
            clock.advance(number)
        elif step == "save":
            list(mounts.to_save())
    for reader in OTHERS[:3]:
        of_reader = [answer for answer in answers if answer.reader == reader]
        assert mounts.find(reader) == being_read(of_reader, clock.seconds())


def being_read(answers: list[LoggedRequest], now: float) -> str | None:
    """The version of the latest answer, where one of it is being sent or was a short while ago."""
    of_version = list(takewhile(lambda answer: answer.version == answers[-1].version, reversed(answers)))
    is_in_progress = any(not answer.is_over or now <= answer.read_at + WINDOW for answer in of_version)
    return answers[-1].version if is_in_progress else None
