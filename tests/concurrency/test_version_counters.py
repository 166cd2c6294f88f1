from __future__ import annotations

import mmap
import os
import secrets

import pytest

from image_service.concurrency.version_counters import COUNT, SIZE_BYTES, VersionCounters


def test_what_was_never_renewed_has_stamp_0() -> None:
    stamps = VersionCounters()
    assert {stamps[slot] for slot in range(COUNT)} == {0}
    assert not stamps.are_shared


def test_a_renewed_stamp_is_another_one_and_the_rest_stay() -> None:
    stamps = VersionCounters()
    seen = set()
    for _ in range(100):
        renewed = stamps.renew(7)
        assert stamps[7] == renewed
        seen.add(renewed)
    assert len(seen) == 100
    assert 0 not in seen
    assert stamps[6] == stamps[8] == 0


def test_every_key_has_a_place_and_equal_keys_have_the_same() -> None:
    stamps = VersionCounters()
    keys = [secrets.token_bytes(32) for _ in range(1000)]
    slots = [stamps.slot(key) for key in keys]
    assert slots == [VersionCounters().slot(bytes(key)) for key in keys]
    for slot in (*slots, stamps.slot(b"\xff" * 32), stamps.slot(bytes(32))):
        stamps.renew(slot)
    assert len(set(slots)) > 900


def test_tables_over_one_memory_see_each_other() -> None:
    memory = memoryview(bytearray(SIZE_BYTES + 5))
    one, two = VersionCounters(memory), VersionCounters(memory)
    one.renew(COUNT - 1)
    assert two[COUNT - 1] == one[COUNT - 1] != 0
    assert one.are_shared


def test_another_process_sees_what_is_renewed() -> None:
    shared = mmap.mmap(-1, SIZE_BYTES)
    stamps = VersionCounters(memoryview(shared))
    child = os.fork()
    if child == 0:
        stamps.renew(3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert stamps[3] != 0


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(IndexError):
        VersionCounters(memoryview(bytearray(SIZE_BYTES - 8))).renew(COUNT - 1)


def test_noted_stamps_are_as_they_were_until_one_is_renewed() -> None:
    stamps = VersionCounters(memoryview(bytearray(SIZE_BYTES)))
    stamps.renew(5)
    noted = stamps.note(5, 6)
    stamps.renew(7)
    assert stamps.are_as(noted)
    stamps.renew(6)
    assert not stamps.are_as(noted)
    assert stamps.are_as(stamps.note(5, 6))


def test_stamps_that_nobody_shares_are_not_worth_noting() -> None:
    assert VersionCounters().note(5, 6) == ()
