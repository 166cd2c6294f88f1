from __future__ import annotations

from itertools import takewhile
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import Coordination
from image_service.core.images.reference import Credentials, CredentialScheme, ImageRef, Kind, Reader
from image_service.server.snapshots.mounts import SAVE_SECONDS, Mount, Mounts, save_seconds
from image_service.server.snapshots.storage.encryption import Seal, SnapshotCipher
from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.snapshot import Snapshot, SnapshotKey
from image_service.server.snapshots.versions import Version
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import outcome, run_now
from tests.server.snapshots.pinning import SECRET, FaultyRepository

if TYPE_CHECKING:
    from image_service.core.images.base_image import BaseImage

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


def version(generation: int) -> Version:
    base = cast("BaseImage", SimpleNamespace(sha256="5f" * 32, version="4.20", architecture="x86_64"))
    key, seal = SnapshotKey(REF.infra_env_id, Kind.FULL_ISO, None), Seal(b"k" * 32, None, bytes(32))
    return Version(REF, base, Snapshot(key, seal, generation, 0.0, 0.0, 3))


ONE, TWO = version(1), version(2)


def make_clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@attrs.define(eq=False)
class Mounting:
    """Mounts, and where they are stored."""

    window: float = WINDOW
    clock: Clock = attrs.field(factory=make_clock)
    repository: MemoryRepository = attrs.field(factory=MemoryRepository)
    archive: SealedRepository = attrs.field(init=False)
    mounts: Mounts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.archive = SealedRepository(
            self.repository, SnapshotCipher(SECRET), run_now, self.clock, self.clock.seconds
        )
        self.mounts = Mounts(self.archive.mounts, self.clock, self.window, Coordination())

    def read(self, reader: Reader = READER, version: Version = ONE) -> Mount:
        """A response that is over at once."""
        mount = self.mounts.start_response(reader, version)
        self.mounts.end_response(mount)
        return mount

    def stored(self, reader: Reader = READER) -> tuple[int, float] | None:
        """The generation of the stored mount, and when it was read."""
        mount = outcome(self.repository.find_mount(self.archive.mounts.key_of(reader)))
        return None if mount is None else (mount.generation, mount.read_at)

    def save(self) -> int:
        """Store the mounts; returns how many were due."""
        due = self.mounts.unsaved()
        for mount in due:
            mount.saved_at = -inf
        outcome(self.mounts.save())
        return len(due)


def mounts_in(repository: FaultyRepository, clock: Clock) -> Mounts:
    archive = SealedRepository(repository, SnapshotCipher(SECRET), run_now, clock)  # type: ignore[arg-type]  # has its methods
    return Mounts(archive.mounts, clock, WINDOW, Coordination())


@pytest.fixture
def mounting() -> Mounting:
    return Mounting()


@pytest.fixture
def mounts(mounting: Mounting) -> Mounts:
    return mounting.mounts


@pytest.fixture
def clock(mounting: Mounting) -> Clock:
    return mounting.clock


# In this process.


def test_mount_is_in_progress_for_its_window_after_the_last_read(
    mounting: Mounting, mounts: Mounts, clock: Clock
) -> None:
    assert mounts.find(READER) is None
    for _ in range(3):
        mounting.read()
        clock.advance(WINDOW)
        assert mounts.find(READER) is ONE
    clock.advance(MOMENT)
    assert mounts.find(READER) is None


def test_readers_have_separate_mounts(mounting: Mounting, mounts: Mounts) -> None:
    mounting.read()
    assert [mounts.find(other) for other in OTHERS] == [None] * len(OTHERS)
    versions = [version(number) for number in range(len(OTHERS))]
    for other, read in zip(OTHERS, versions, strict=True):
        mounting.read(other, read)
    assert mounts.find(READER) is ONE
    assert [mounts.find(other) for other in OTHERS] == versions


def test_response_in_progress_keeps_its_mount_in_progress(mounts: Mounts, clock: Clock) -> None:
    mount = mounts.start_response(READER, ONE)
    assert mounts.start_response(READER, ONE) is mount
    clock.advance(100 * WINDOW)
    mounts.end_response(mount)
    clock.advance(100 * WINDOW)
    assert mounts.find(READER) is ONE
    mounts.end_response(mount)
    clock.advance(WINDOW)
    assert mounts.find(READER) is ONE
    clock.advance(MOMENT)
    assert mounts.find(READER) is None


def test_reading_another_version_replaces_the_mount(mounts: Mounts, clock: Clock) -> None:
    first = mounts.start_response(READER, ONE)
    second = mounts.start_response(READER, TWO)
    assert (mounts.find(READER), second.responses, first.is_over) == (TWO, 1, True)
    mounts.end_response(second)
    clock.advance(WINDOW)
    mounts.end_response(first)
    clock.advance(MOMENT)
    assert mounts.find(READER) is None, "the end of a response of the first does not prolong the second"


def test_equal_version_is_the_same_mount(mounting: Mounting) -> None:
    assert mounting.read(READER, attrs.evolve(ONE)) is mounting.read(READER, attrs.evolve(ONE))


def test_adopted_mount_was_read_when_it_was_stored(mounting: Mounting, mounts: Mounts, clock: Clock) -> None:
    stored = StoredMount(b"r" * 32, b"k" * 32, 1, "5f" * 32, clock.seconds() - WINDOW)
    mounts.adopt(READER, ONE, 0, stored)
    assert mounts.find(READER) is ONE
    clock.advance(MOMENT)
    assert mounts.find(READER) is None
    mounting.read()
    mounts.adopt(READER, ONE, 0, stored)
    clock.advance(WINDOW)
    assert mounts.find(READER) is ONE, "it has been read since"


# In the repository.


def test_mount_is_stored_when_it_starts(mounting: Mounting, clock: Clock) -> None:
    now = clock.seconds()
    mounting.read()
    assert mounting.stored() == (1, now)
    assert mounting.save() == 0
    mounting.read(READER, TWO)
    assert mounting.stored() == (2, now)


def test_mount_is_stored_again_after_it_has_read(mounting: Mounting, clock: Clock) -> None:
    now = clock.seconds()
    mounting.read()
    clock.advance(SAVE_SECONDS / 2)
    assert mounting.save() == 0
    mounting.read()
    assert mounting.stored() == (1, now), "not at each read"
    assert mounting.save() == 1
    assert mounting.stored() == (1, now + SAVE_SECONDS / 2)
    assert mounting.save() == 0


@pytest.mark.parametrize("window", [0.5, 1.0, 10.0, WINDOW, 3600.0])
def test_read_stores_its_mount_if_the_periodic_save_is_late(window: float) -> None:
    mounting = Mounting(window)
    mounting.read()
    saved_at = mounting.clock.seconds()
    mounting.clock.advance(1.5 * save_seconds(window))
    mounting.read()
    assert mounting.stored() == (1, saved_at), "the periodic save is about to store it"
    mounting.clock.advance(0.5 * save_seconds(window))
    mounting.read()
    stored = mounting.stored()
    assert stored == (1, mounting.clock.seconds())
    assert stored[1] <= saved_at + window / 2, "it is not over to other processes"


def test_read_stores_its_mount_again_soon_after_a_save_has_failed() -> None:
    repository, clock = FaultyRepository(), make_clock()
    mounts = mounts_in(repository, clock)
    mount = mounts.start_response(READER, ONE)
    mounts.end_response(mount)
    clock.advance(SAVE_SECONDS)
    assert mounts.touch(READER, mount) == clock.seconds() + SAVE_SECONDS
    repository.broken = {"save_mounts"}
    assert outcome(mounts.save()) is False
    assert mounts.touch(READER, mount) == clock.seconds() + SAVE_SECONDS


def test_further_read_waits_for_nothing_until_the_periodic_save_is_late(
    mounting: Mounting, mounts: Mounts, clock: Clock
) -> None:
    mount, overdue_at = mounting.read(), clock.seconds() + 2 * SAVE_SECONDS
    clock.advance(1.5 * SAVE_SECONDS)
    assert mounts.touch(READER, mount) == overdue_at
    clock.advance(0.5 * SAVE_SECONDS)
    assert mounts.touch(READER, mount) is None
    assert mounting.save() == 1
    assert mounts.touch(READER, mount) == clock.seconds() + 2 * SAVE_SECONDS


def test_mount_with_a_response_in_progress_is_stored_as_read_now(
    mounting: Mounting, mounts: Mounts, clock: Clock
) -> None:
    mount = mounts.start_response(READER, ONE)
    for _ in range(3):
        clock.advance(10 * WINDOW)
        assert mounting.save() == 1
        assert mounting.stored() == (1, clock.seconds())
    mounts.end_response(mount)
    assert mounting.save() == 0


def test_mounts_that_are_over_are_forgotten(mounting: Mounting, mounts: Mounts, clock: Clock) -> None:
    over = mounting.read()
    mounting.read(OTHERS[0])
    clock.advance(WINDOW + MOMENT)
    mounting.read(OTHERS[0])
    mounting.save()
    assert over.is_over
    assert list(mounts.versions()) == [ONE]


@pytest.mark.parametrize("window", [0.5, 1, 10, 60, 3600])
def test_mounts_are_stored_often_enough_for_their_window(window: float) -> None:
    assert save_seconds(window) <= min(window / 4, SAVE_SECONDS)


# Bounds.


def test_mount_that_was_not_read_for_longest_is_evicted(
    mounting: Mounting, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts.cache, "limit", 3)
    for reader in (READER, *OTHERS[:2]):
        mounting.read(reader)
    mounting.read()
    mounting.read(OTHERS[2])
    found = [mounts.find(reader) for reader in (READER, *OTHERS[:3])]
    assert found == [ONE, None, ONE, ONE]


@attrs.define
class NaiveResponse:
    """A response, as a naive account has it."""

    reader: Reader
    version: Version
    mount: Mount
    read_at: float
    is_over: bool = False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "wait", "save"]),
            st.integers(0, 90),
            st.sampled_from([ONE, TWO]),
        ),
        max_size=30,
    )
)
def test_mounts_agree_with_a_naive_account_of_all_responses(steps: list[tuple[str, int, Version]]) -> None:
    mounting = Mounting()
    mounts, clock = mounting.mounts, mounting.clock
    responses: list[NaiveResponse] = []
    for step, number, read in steps:
        if step == "start":
            reader = OTHERS[number % 3]
            mount = mounts.start_response(reader, read)
            responses.append(NaiveResponse(reader, read, mount, clock.seconds()))
        elif step == "end" and responses and not (ended := responses[number % len(responses)]).is_over:
            ended.is_over, ended.read_at = True, clock.seconds()
            mounts.end_response(ended.mount)
        elif step == "wait":
            clock.advance(number)
        elif step == "save":
            mounting.save()
    for reader in OTHERS[:3]:
        of_reader = [response for response in responses if response.reader == reader]
        assert mounts.find(reader) == being_read(of_reader, clock.seconds())


def being_read(responses: list[NaiveResponse], now: float) -> Version | None:
    """The version of the latest response, if one of it is in progress or was a short while ago."""
    of_version = list(takewhile(lambda each: each.version == responses[-1].version, reversed(responses)))
    is_in_progress = any(not each.is_over or now <= each.read_at + WINDOW for each in of_version)
    return responses[-1].version if is_in_progress else None


def test_mount_whose_first_write_is_not_over_is_not_saved() -> None:
    repository = FaultyRepository(gate=Deferred())
    mounts = mounts_in(repository, make_clock())
    mounts.start_response(READER, ONE)
    assert outcome(mounts.save()) is False
    gate, repository.gate = repository.gate, None
    assert gate is not None
    gate.callback(None)
    assert outcome(mounts.save()) is True
