from __future__ import annotations

import gzip
import hashlib
import lzma
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import BaseImageError, FormatError, Unavailable
from image_service.jobs.artifacts import disk_images
from tests.jobs.artifacts.composing_images import Artifacts, disk_entry
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DISK = bytes(512 * 1024) + b"boot" * 1024 + bytes(3 * 1024 * 1024)
SHA256 = hashlib.sha256(DISK).hexdigest()


def write(directory: Path, content: bytes, name: str = "disk") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bytes], ids=["xz", "gzip", "raw"])
@ensure_deferred
async def test_disk_is_verified_and_unpacked(
    artifacts: Artifacts, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path, pack(DISK))
    packed_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    disk = await artifacts.disks.get(disk_entry(path, sha256=packed_sha256))
    assert disk.file.read_at(0, len(DISK) + 1) == DISK
    assert (disk.sha256, disk.packed_sha256, disk.file.size) == (SHA256, packed_sha256, len(DISK))
    assert path.exists()  # a file of the operator stays


@ensure_deferred
async def test_unpacked_disk_has_holes_for_zeros(artifacts: Artifacts, tmp_path: Path) -> None:
    await artifacts.disks.get(disk_entry(write(tmp_path, lzma.compress(DISK))))
    (unpacked,) = (tmp_path / "disks").glob("*.unpacked")
    status = unpacked.stat()
    assert status.st_size == len(DISK)
    assert status.st_blocks * 512 < 1024 * 1024


@ensure_deferred
async def test_disk_is_unpacked_once(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = disk_entry(write(tmp_path, lzma.compress(DISK)))
    first = await artifacts.disks.get(entry)
    assert await artifacts.disks.get(entry) is first
    artifacts.disks.close()
    monkeypatch.setattr(disk_images, "DecompressedStream", None)
    assert (await artifacts.disks.get(entry)).sha256 == SHA256


@ensure_deferred
async def test_replaced_disk_is_unpacked_again(artifacts: Artifacts, tmp_path: Path) -> None:
    entry = disk_entry(write(tmp_path, lzma.compress(DISK)))
    await artifacts.disks.get(entry)
    artifacts.disks.close()
    other = DISK + b"other"
    write(tmp_path, lzma.compress(other))
    assert (await artifacts.disks.get(entry)).sha256 == hashlib.sha256(other).hexdigest()


@ensure_deferred
async def test_disk_that_was_changed_is_unpacked_again(artifacts: Artifacts, tmp_path: Path) -> None:
    entry = disk_entry(write(tmp_path, lzma.compress(DISK)))
    await artifacts.disks.get(entry)
    artifacts.disks.close()
    (unpacked,) = (tmp_path / "disks").glob("*.unpacked")
    unpacked.write_bytes(b"x")
    assert (await artifacts.disks.get(entry)).file.size == len(DISK)


@ensure_deferred
async def test_disk_that_is_no_longer_offered_is_closed(artifacts: Artifacts, tmp_path: Path) -> None:
    entry = disk_entry(write(tmp_path, DISK))
    disk = await artifacts.disks.get(entry)
    artifacts.disks.forget_others({entry.file_name})
    assert await artifacts.disks.get(entry) is disk
    artifacts.disks.forget_others(())
    assert disk.file.read_at(0, 4) == DISK[:4]  # while it is read
    assert await artifacts.disks.get(entry) is not disk


@ensure_deferred
async def test_wrong_digest_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(BaseImageError, match="must be 000"):
        await artifacts.disks.get(disk_entry(write(tmp_path, DISK), sha256="0" * 64))


@ensure_deferred
async def test_damaged_archive_is_refused_and_leaves_nothing(artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        await artifacts.disks.get(disk_entry(write(tmp_path, lzma.compress(DISK)[:-20])))
    assert not list((tmp_path / "disks").glob("*unpacked*"))


@ensure_deferred
async def test_bomb_is_refused(artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_images, "MAX_UNPACKED_BYTES", len(DISK) - 1)
    with pytest.raises(FormatError, match="exceeds"):
        await artifacts.disks.get(disk_entry(write(tmp_path, lzma.compress(DISK))))


@ensure_deferred
async def test_absent_file_is_unavailable(artifacts: Artifacts, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        await artifacts.disks.get(disk_entry(tmp_path / "absent"))


@ensure_deferred
async def test_stopping_ends_unpacking(artifacts: Artifacts, tmp_path: Path) -> None:
    artifacts.interruption.interrupt()
    with pytest.raises(Unavailable, match="stopping"):
        await artifacts.disks.get(disk_entry(write(tmp_path, lzma.compress(DISK))))


@ensure_deferred
async def test_reader_that_does_not_wait_retries(artifacts: Artifacts, tmp_path: Path) -> None:
    entry = disk_entry(write(tmp_path, DISK))
    with pytest.raises(Unavailable) as refusal:
        artifacts.disks.get_ready(entry)
    assert refusal.value.retry_after_seconds
    assert artifacts.disks.get_ready(entry).sha256 == SHA256


@ensure_deferred
async def test_reader_that_does_not_wait_does_not_learn_of_failures(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="being fetched"):
            artifacts.disks.get_ready(disk_entry(tmp_path / "absent"))
