from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from image_service.core.errors import StoreFailed, StoreFull
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    Reader,
)
from image_service.server.snapshots.storage import sealed_repository as archive_module
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.repository import StoredMount
from image_service.server.snapshots.storage.sealed_repository import (
    THREAD_BYTES,
    SealedRepository,
    first_generation,
)
from image_service.server.snapshots.storage.snapshot import Question, Snapshot
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import (
    CREDENTIALS,
    ID,
    KEY,
    NOW,
    SECRET,
    FaultyRepository,
    Pinning,
    customization,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.images.reference import Ref
    from image_service.server.snapshots.storage.repository import SnapshotRepository

METHODS = (
    "find_newest",
    "has_ended",
    "load",
    "add",
    "record_validation",
    "record_refusal",
    "end",
    "save_mounts",
    "find_mount",
    "remove_unused",
)
READER = Reader("192.0.2.1", None, ImageRef(ID, "4.20", "x86_64", Kind.FULL_ISO))
BASE = "5f" * 32


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


def add(pinning: Pinning, answer: Customization, *, after: int = 0, question: Question = KEY) -> Snapshot:
    return outcome(
        pinning.archive.add(
            question.key,
            pinning.archive.seal_of(question),
            answer,
            after=after,
            at=pinning.clock.seconds(),
        )
    )


def same(pinning: Pinning, snapshot: Snapshot, answer: Customization) -> bool:
    return outcome(pinning.archive.is_same(snapshot, answer))


def find_generation(pinning: Pinning, number: int) -> Snapshot | None:
    snapshot = Snapshot(KEY.key, pinning.archive.seal_of(KEY), number, 0.0, 0.0, 3)
    return snapshot if loaded(pinning, snapshot) is not None else None


def stored_mount(pinning: Pinning, reader: Reader, snapshot: Snapshot) -> StoredMount:
    reader_key = pinning.archive.mounts.key_of(reader)
    return StoredMount(reader_key, snapshot.stored_key, snapshot.generation, BASE, NOW, NOW)


def recall(pinning: Pinning, reader: Reader) -> StoredMount | None:
    return outcome(pinning.archive.mounts.find(pinning.archive.mounts.key_of(reader)))


def loaded(pinning: Pinning, snapshot: Snapshot) -> Customization | None:
    return outcome(pinning.archive.load(snapshot))


# What is kept comes back.


def test_snapshot_is_restored_by_the_next_process(pinning: Pinning) -> None:
    assert pinning.newest_stored() is None
    argument = KernelArgument(Operation.APPEND, "quiet")
    answer = customization("x", kernel_arguments=(argument,), ramdisk=b"070701")
    kept = add(pinning, answer)
    pinning.clock.advance(60)
    outcome(pinning.archive.record_validation(kept, NOW + 60))
    found = pinning.restarted().newest_stored()
    assert found is not None
    snapshot, validated_at = found
    assert (snapshot.generation, snapshot.taken_at, validated_at) == (1, NOW, NOW + 60)
    assert snapshot.stored_key == kept.stored_key
    assert same(pinning.restarted(), snapshot, answer)
    assert loaded(pinning.restarted(), snapshot) == answer


def test_superseded_generation_is_found_until_its_key_ends(pinning: Pinning) -> None:
    first, second = customization("1"), customization("2")
    kept = add(pinning, first)
    add(pinning, second, after=1)
    after = pinning.restarted()
    found = find_generation(after, 1)
    assert found is not None
    assert loaded(after, found) == first
    assert find_generation(after, 3) is None
    outcome(pinning.archive.end(kept, NOW))
    for anyone in (pinning, pinning.restarted()):
        assert find_generation(anyone, 1) is None
        assert anyone.newest_stored() is None
    assert add(pinning, first, after=2).generation == 3


def test_credentials_and_kinds_do_not_share_snapshots(pinning: Pinning) -> None:
    questions = [
        Question(ID, kind, credentials)
        for kind in (Kind.FULL_ISO, Kind.MINIMAL_ISO, Kind.PXE_INITRD)
        for credentials in CREDENTIALS
    ]
    answers = {question: customization() for question in questions}
    for question, answer in answers.items():
        assert add(pinning, answer, question=question).generation == 1
    for question, answer in answers.items():
        found = pinning.restarted().newest_stored(question)
        assert found is not None
        assert loaded(pinning, found[0]) == answer


def test_payload_of_other_credentials_is_not_read(pinning: Pinning) -> None:
    """Even where a row is found: were a key ever taken for another, the seal would tell."""
    kept = add(pinning, customization("s3cr3t"))
    archive = pinning.restarted().archive
    others = attrs.evolve(KEY, credentials=CREDENTIALS[1])
    seal = attrs.evolve(archive.seal_of(others), key=kept.stored_key)
    with capturedLogs() as events:
        assert outcome(archive.load(attrs.evolve(kept, seal=seal))) is None
    assert len(events) == 1
    assert "s3cr3t" not in str(events)
    assert attrs.evolve(pinning, secret=b"t" * 32).newest_stored() is None


def test_damaged_payload_is_not_read(pinning: Pinning) -> None:
    class Damaged(MemoryRepository):
        async def load(self, key: bytes, generation: int) -> bytes | None:
            sealed = await super().load(key, generation)
            return sealed and sealed[:-1] + bytes([sealed[-1] ^ 1])

    pinning.store.store = Damaged()
    kept = add(pinning, customization())
    assert pinning.restarted().newest_stored() is None
    assert loaded(pinning, kept) is not None, "whoever has it in memory goes on"


def test_repository_holds_no_secret(pinning: Pinning) -> None:
    secret = Credentials(CredentialScheme.API_KEY, "s3cr3t-key")
    question = Question(ID, Kind.FULL_ISO, secret)
    kept = add(pinning, customization("s3cr3t-text"), question=question)
    outcome(
        pinning.archive.mounts.save([stored_mount(pinning, attrs.evolve(READER, credentials=secret), kept)])
    )
    written = repr(pinning.store.store)
    for shown in ("s3cr3t", ID, "192.0.2.1", "ignition", "4.20"):
        assert shown not in written
    assert "s3cr3t" not in f"{kept!r} {question!r}"


# Two processes, one store.


def test_equal_answer_of_a_faster_process_is_adopted(pinning: Pinning) -> None:
    other = pinning.restarted()
    first, second = customization("same"), customization("same")
    assert first != second
    kept, adopted = add(pinning, first), add(other, second)
    assert (adopted.generation, adopted.taken_at) == (kept.generation, kept.taken_at)
    assert loaded(other, adopted) == first


def test_different_answer_of_another_process_is_not_adopted(pinning: Pinning) -> None:
    """It was asked before somebody changed the infra-env."""
    other = pinning.restarted()
    old, new = customization("old"), customization("new")
    add(pinning, old)
    for generation in (2, 3):
        add(pinning, customization(str(generation)), after=generation - 1)
    pinning.store.called.clear()
    kept = add(other, new)
    assert kept.generation == 4
    assert pinning.store.called["add"] == 2
    assert loaded(other, kept) == new
    assert loaded(pinning.restarted(), kept) == new


def test_generation_follows_an_end_by_another_process(pinning: Pinning) -> None:
    other = pinning.restarted()
    kept = add(pinning, customization("1"))
    outcome(other.archive.end(kept, NOW))
    assert loaded(pinning, kept) is not None, "what is in memory is another matter"
    assert pinning.restarted().newest_stored() is None
    assert add(other, customization("1")).generation == 2


# A store that fails.


@pytest.mark.parametrize("broken", [(), *((method,) for method in METHODS), METHODS])
def test_answer_is_kept_in_memory_if_the_repository_fails(pinning: Pinning, broken: tuple[str, ...]) -> None:
    pinning.store.broken.update(broken)
    archive, answer = pinning.archive, customization()
    pinning.newest_stored()
    kept = add(pinning, answer)
    assert loaded(pinning, kept) == answer
    outcome(archive.record_validation(kept, NOW + 1))
    outcome(archive.mounts.save([stored_mount(pinning, READER, kept)]))
    recall(pinning, READER)
    outcome(archive.remove_unused(0))
    outcome(archive.end(kept, NOW))
    assert loaded(pinning, kept) == (answer if broken == ("end",) else None)


def test_unstored_snapshot_is_never_confused_with_a_stored_one(pinning: Pinning) -> None:
    """The store may have others by any number that is made up."""
    stored = customization("stored")
    add(pinning, stored)
    other = pinning.restarted()
    other.store = attrs.evolve(pinning.store, broken=set(METHODS))
    other.__attrs_post_init__()
    unsaved = [add(other, customization("unsaved")) for _ in range(3)]
    other.store.broken.clear()
    assert len({snapshot.generation for snapshot in unsaved}) == 3
    assert all(snapshot.generation < 0 for snapshot in unsaved)
    found = other.newest_stored()
    assert found is not None
    assert loaded(other, found[0]) == stored
    assert loaded(pinning.restarted(), unsaved[0]) is None
    later = customization("later")
    kept = add(other, later, after=unsaved[2].generation)
    assert (kept.generation, loaded(pinning.restarted(), kept)) == (2, later)


def test_generations_follow_the_repository_after_it_recovers(pinning: Pinning) -> None:
    pinning.store.broken.update(METHODS)
    unsaved = add(pinning, customization("1"))
    pinning.store.broken.clear()
    assert add(pinning, customization("2"), after=unsaved.generation).generation == 1


def test_write_only_repository_causes_no_endless_loop(pinning: Pinning) -> None:
    add(pinning, customization("1"))
    other = pinning.restarted()
    pinning.store.broken.add("find_newest")
    answer = customization("2")
    kept = add(other, answer)
    assert kept.generation < 0
    assert loaded(other, kept) == answer


@pytest.mark.parametrize("broken", [{"add"}, {"load", "find_newest"}, set(METHODS)])
def test_failing_repository_is_logged_once(pinning: Pinning, broken: set[str]) -> None:
    """Also where only writing fails, as on a full disk."""
    pinning.store.broken.update(broken)
    with capturedLogs() as events:
        for _ in range(5):
            pinning.newest_stored()
            snapshot = add(pinning, customization())
            loaded(pinning, attrs.evolve(snapshot, generation=99))
    shown = [formatEvent(event) for event in events]
    assert len(shown) == len({method == "add" for method in broken})
    assert all("fails" in line for line in shown)
    assert pinning.snapshots.store_failing == {"read": broken != {"add"}, "write": "add" in broken}


def test_failure_after_a_recovery_is_logged_again(pinning: Pinning) -> None:
    with capturedLogs() as events:
        for broken in (True, True, False, False, True, True):
            pinning.clock.advance(1)
            pinning.store.broken = {"find_newest"} if broken else set()
            pinning.newest_stored()
    failed, again, failed_again = (formatEvent(event) for event in events)
    assert failed == failed_again
    assert again == "can read stored snapshots again"
    assert pinning.snapshots.store_failing == {"read": True, "write": False}


# What is in memory only is stored later.


def is_restored(pinning: Pinning, snapshot: Snapshot, answer: Customization) -> bool:
    """Return True if the next process finds a snapshot as this one has it."""
    found = pinning.restarted().newest_stored()
    return (
        found is not None
        and (found[0].generation, found[0].taken_at) == (snapshot.generation, snapshot.taken_at)
        and loaded(pinning.restarted(), found[0]) == answer
    )


def validate(pinning: Pinning, snapshot: Snapshot) -> None:
    now = pinning.clock.seconds()
    outcome(pinning.archive.record_validation(snapshot, now))


def remove_all(pinning: Pinning) -> None:
    """As when others need the room."""
    outcome(pinning.store.store.remove_unused(NOW + 1, NOW + 1))


def test_snapshot_is_stored_at_its_validation_once_the_repository_works(pinning: Pinning) -> None:
    pinning.store.broken.update(METHODS)
    answer = customization()
    kept = add(pinning, answer)
    validate(pinning, kept)
    assert kept.generation < 0
    pinning.store.broken.clear()
    pinning.clock.advance(60)
    validate(pinning, kept)
    assert kept.generation == 1
    assert is_restored(pinning, kept, answer)
    assert loaded(pinning, kept) == answer
    found = pinning.restarted().newest_stored()
    assert found is not None
    assert found[1] == NOW + 60


def test_removed_snapshot_is_stored_again_by_its_number(pinning: Pinning) -> None:
    answer = customization()
    kept = add(pinning, answer)
    remove_all(pinning)
    assert pinning.newest_stored() is None
    validate(pinning, kept)
    assert is_restored(pinning, kept, answer)
    assert kept.generation == 1


def test_ended_snapshot_is_not_stored_again(pinning: Pinning) -> None:
    kept = add(pinning, customization())
    other = pinning.restarted()
    outcome(other.archive.end(kept, NOW))
    validate(pinning, kept)
    assert pinning.newest_stored() is None


def test_snapshot_whose_write_took_too_long_gets_the_number_that_it_has(pinning: Pinning) -> None:
    class Late(MemoryRepository):
        async def add(self, *arguments: Any, **options: Any) -> bool:
            await super().add(*arguments, **options)
            raise StoreFailed("no result in time")

    late = Late()
    pinning.store.store = late
    answer = customization()
    kept = add(pinning, answer)
    assert kept.generation < 0
    validate(pinning, kept)
    assert kept.generation == 1
    assert is_restored(pinning, kept, answer)
    assert list(late._rows) == [(kept.stored_key, 1)]


def test_new_keys_begin_with_numbers_that_no_other_has_had() -> None:
    """A process may still have a snapshot that the store has removed."""
    numbers = {first_generation() for _ in range(100)}
    assert len(numbers) == 100
    assert all(0 < number < 2**63 - 2**32 for number in numbers)


def test_generation_after_a_removed_one_is_another(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "first_generation", first_generation)
    kept = add(pinning, customization("1"))
    remove_all(pinning)
    answer = customization("2")
    again = add(pinning.restarted(), answer)
    assert kept.generation != again.generation
    assert is_restored(pinning, again, answer)
    assert not outcome(pinning.archive.has_ended(kept)), "its mounts continue"


def test_snapshot_without_room_is_kept_in_memory_and_not_logged(pinning: Pinning) -> None:
    pinning.store.broken.add("add")
    pinning.store.error = StoreFull("too large")
    answer = customization()
    with capturedLogs() as events:
        kept = add(pinning, answer)
    assert loaded(pinning, kept) == answer
    assert [event for event in events if event["log_level"] is not LogLevel.debug] == []


# Mounts.


def test_mount_is_found_by_the_next_process_for_the_same_reader_only(pinning: Pinning) -> None:
    kept = add(pinning, customization())
    outcome(pinning.archive.mounts.save([stored_mount(pinning, READER, kept)]))
    after = pinning.restarted()
    mount = recall(after, READER)
    assert mount is not None
    assert (mount.key, mount.generation, mount.base_sha256, mount.read_at) == (kept.stored_key, 1, BASE, NOW)
    others = [
        attrs.evolve(READER, address="192.0.2.2"),
        *(attrs.evolve(READER, credentials=credentials) for credentials in CREDENTIALS[1:]),
        *(Reader(READER.address, None, ref) for ref in REFS if ref != READER.ref),
    ]
    assert [recall(after, other) for other in others] == [None] * len(others)


REFS: list[Ref] = [
    ImageRef(ID, "4.20", "x86_64", Kind.FULL_ISO),
    ImageRef(ID, "4.20", "x86_64", Kind.MINIMAL_ISO),
    ImageRef(ID, "4.20", "x86_64", None),
    ImageRef(ID, "4.20", None, Kind.FULL_ISO),
    ImageRef(ID, None, None, None),
    ImageRef(ID.replace("a", "b"), "4.20", "x86_64", Kind.FULL_ISO),
    ArtifactRef(BootArtifact.ROOTFS, "4.20", "x86_64"),
    ArtifactRef(BootArtifact.KERNEL, "4.20", "x86_64"),
]


def test_saving_no_mounts_needs_no_transaction(pinning: Pinning) -> None:
    outcome(pinning.archive.mounts.save([]))
    assert pinning.store.called["save_mounts"] == 0


def test_unused_snapshots_are_removed(pinning: Pinning) -> None:
    add(pinning, customization())
    with capturedLogs() as events:
        outcome(pinning.archive.remove_unused(0))
        pinning.clock.advance(1)
        outcome(pinning.archive.remove_unused(0.5))
    assert [formatEvent(event) for event in events] == ["removed 1 unused snapshots"]
    assert pinning.restarted().newest_stored() is None


# Bounds.


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=30))
def test_recent_answers_are_bounded_by_bytes(steps: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive_module, "RECENT_BYTES", 2000)
        patched.setattr(archive_module, "OVERHEAD_BYTES", 100)
        pinning = Pinning()
        snapshots = []
        for which, size in steps:
            question = attrs.evolve(KEY, infra_env_id=str(which))
            snapshots.append(add(pinning, Customization(bytes(size), (), None), question=question))
        pinning.store.broken = {"load"}
        distinct = {(each.stored_key, each.generation): each for each in snapshots}
        found = [loaded(pinning, snapshot) for snapshot in distinct.values()]
        held = [len(kept.ignition) + 100 for kept in found if kept is not None]
        assert sum(held) <= 2000 or len(held) == 1
        assert len(held) >= min(len(found), 4), "an answer has 500 bytes at most"


@pytest.mark.parametrize(("missing_bytes", "expected"), [(0, 2), (1, 1)])
def test_kernel_arguments_and_ramdisk_count_as_held_bytes(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch, missing_bytes: int, expected: int
) -> None:
    size = 1000 + 10 + 100 + archive_module.OVERHEAD_BYTES
    monkeypatch.setattr(archive_module, "RECENT_BYTES", 2 * size - missing_bytes)
    pinning.__attrs_post_init__()
    pinning.store.broken.update(METHODS)
    argument = KernelArgument(Operation.APPEND, "x" * 1000)
    answer = Customization(b"i" * 10, (argument,), None, b"r" * 100)
    snapshots = [add(pinning, answer), add(pinning, answer)]
    assert [loaded(pinning, snapshot) for snapshot in snapshots].count(answer) == expected


def test_latest_answer_is_kept_in_memory_beyond_the_limit(
    pinning: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store it would be asked for again and again."""
    monkeypatch.setattr(archive_module, "RECENT_BYTES", 10)
    pinning.__attrs_post_init__()
    pinning.store.broken.update(METHODS)
    answers = [customization("1"), customization("2")]
    first, second = (add(pinning, answer) for answer in answers)
    assert (loaded(pinning, first), loaded(pinning, second)) == (None, answers[1])
    assert same(pinning, first, answers[0]), "which is known without it"


def test_least_recently_used_answer_is_evicted(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [customization(str(number)) for number in range(3)]
    size = max(len(answer.ignition) for answer in answers) + archive_module.OVERHEAD_BYTES
    monkeypatch.setattr(archive_module, "RECENT_BYTES", 2 * size)
    pinning.__attrs_post_init__()
    pinning.store.broken.update(METHODS)
    first, second = (add(pinning, answer) for answer in answers[:2])
    loaded(pinning, first)
    add(pinning, answers[2])
    assert (loaded(pinning, first), loaded(pinning, second)) == (answers[0], None)


# Threads.


@attrs.define(eq=False)
class Threads:
    """Counts what is done in them."""

    done: int = 0

    def __call__(self, work: Callable[[], object], /) -> Deferred[object]:
        self.done += 1
        result: Deferred[object] = Deferred()
        result.callback(work())
        return result


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Customization(b"i" * (THREAD_BYTES - 500), (), None), (0, 0)),
        (Customization(b"i" * (THREAD_BYTES + 1), (), None), (1, 2)),
        (Customization(b"i" * THREAD_BYTES, (KernelArgument(Operation.APPEND, "x"),), None), (1, 2)),
        (Customization(b"i", (), None, os.urandom(THREAD_BYTES)), (1, 2)),
        # Of a few bytes, a ramdisk may unpack to many.
        (Customization(b"i", (), None, b"070701"), (0, 2)),
    ],
)
def test_large_answers_are_sealed_and_compared_in_a_thread(
    answer: Customization, expected: tuple[int, int]
) -> None:
    ciphering, fingerprinting = expected
    threads, store = Threads(), MemoryRepository()
    archive = SealedRepository(store, SnapshotCipher(SECRET), threads, Clock())  # type: ignore[arg-type]  # one type for all
    kept = outcome(archive.add(KEY.key, archive.seal_of(KEY), answer, after=0, at=NOW))
    assert threads.done == ciphering, "sealing, and no fingerprint"
    archive = SealedRepository(store, SnapshotCipher(SECRET), threads, Clock())  # type: ignore[arg-type]  # same
    outcome(archive.load(kept))
    assert threads.done == 2 * ciphering, "and unsealing"
    assert outcome(archive.is_same(kept, answer))
    assert threads.done == 2 * ciphering + fingerprinting, "of both"
    outcome(archive.is_same(kept, answer))
    assert threads.done == 2 * ciphering + fingerprinting * 3 // 2, "of what is new"


def test_lost_snapshot_equals_no_answer(pinning: Pinning) -> None:
    answer = customization("x")
    kept = add(pinning, answer)
    assert not same(pinning, kept, customization("y"))
    kept.fingerprint = None
    outcome(pinning.archive.end(kept, NOW))
    assert not same(pinning, kept, answer)


def test_slow_write_delays_no_read(pinning: Pinning) -> None:
    gate: Deferred[None] = Deferred()

    @attrs.define(eq=False)
    class Slow(MemoryRepository):
        async def add(self, *arguments: Any, **options: Any) -> bool:
            await gate
            return await super().add(*arguments, **options)

    pinning.store = FaultyRepository(cast("SnapshotRepository", Slow()))
    pinning.__attrs_post_init__()
    adding = Outcome(
        pinning.archive.add(KEY.key, pinning.archive.seal_of(KEY), customization(), after=0, at=NOW)
    )
    assert pinning.newest_stored() is None
    assert not adding.has_fired
    gate.callback(None)
    assert adding.value.generation == 1
