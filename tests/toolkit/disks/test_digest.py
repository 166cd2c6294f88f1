"""SHA-256 of sparse files, in the foreground and beside other work."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.files.data_ranges import data_ranges
from image_service.toolkit.disks.digest import sha256_beside, sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MIB = 1 << 20


def write_sparse(path: Path, size: int, pieces: Sequence[tuple[int, bytes]] = ()) -> int:
    """Write pieces at their offsets into a file of holes, and return a descriptor."""
    with path.open("wb") as file:
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
        file.truncate(size)
    return os.open(path, os.O_RDONLY)


@given(
    size=st.integers(0, 12 * MIB),
    pieces=st.lists(st.tuples(st.integers(0, 11 * MIB), st.binary(min_size=1, max_size=99)), max_size=4),
)
def test_digest_is_that_of_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, size: int, pieces: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("digest") / "sparse"
    descriptor = write_sparse(path, size, pieces)
    try:
        assert sha256_of(descriptor, lambda _count: None) == hashlib.sha256(path.read_bytes()).hexdigest()
    finally:
        os.close(descriptor)


def test_holes_are_not_read(tmp_path: Path) -> None:
    descriptor = write_sparse(tmp_path / "sparse", 64 * MIB, [(20 * MIB, b"data")])
    counts: list[int] = []
    sha256_of(descriptor, counts.append)
    assert 4 <= sum(counts) <= MIB
    ranges = list(data_ranges(descriptor))
    assert sum(length for _, length in ranges) == sum(counts)
    assert any(start <= 20 * MIB < start + length for start, length in ranges)
    os.close(descriptor)


def test_block_device_has_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = write_sparse(tmp_path / "device", MIB, [(5, b"data")])
    lseek = os.lseek

    def lseek_of_block_devices(number: int, offset: int, whence: int) -> int:
        if whence in {os.SEEK_DATA, os.SEEK_HOLE}:
            raise OSError(errno.EINVAL, "Invalid argument")
        return lseek(number, offset, whence)

    expected = hashlib.sha256((tmp_path / "device").read_bytes()).hexdigest()
    monkeypatch.setattr(os, "lseek", lseek_of_block_devices)
    assert list(data_ranges(descriptor)) == [(0, MIB)]
    assert sha256_of(descriptor, lambda _count: None) == expected
    os.close(descriptor)


def test_digest_beside_a_block_has_the_same_result(tmp_path: Path) -> None:
    descriptor = write_sparse(tmp_path / "file", 9 * MIB, [(5, b"data")])
    with sha256_beside(descriptor, lambda _count: None) as result:
        found = result.result()
    assert found == sha256_of(descriptor, lambda _count: None)
    os.close(descriptor)


def test_thread_gets_no_signal_that_a_block_defers(tmp_path: Path) -> None:
    descriptor = write_sparse(tmp_path / "file", MIB, [(5, b"data")])
    blocked: set[int] = set()
    with sha256_beside(
        descriptor, lambda _count: blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    ) as result:
        result.result()
    assert blocked >= {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
    os.close(descriptor)


def test_block_that_fails_ends_the_thread_at_its_next_piece(tmp_path: Path) -> None:
    descriptor = write_sparse(tmp_path / "file", 1 << 43)  # hashing it would take hours
    begun = threading.Event()

    def fail_when_begun() -> None:
        with sha256_beside(descriptor, lambda _count: begun.set()):
            assert begun.wait(60)
            raise SystemExit

    with pytest.raises(SystemExit):
        fail_when_begun()
    os.close(descriptor)
