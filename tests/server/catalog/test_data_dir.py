from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs, formatEvent

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.partial_file import state_path
from image_service.server.catalog.storage import data_dir
from image_service.server.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir, create_directory
from image_service.server.catalog.storage.manifest import read_manifest
from image_service.server.snapshots.storage.sql_statements import DATABASE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "rhcos-full-iso-1-x86_64.iso"
REFUSED = f"{IMAGE}.refused"
RETENTION = 100.0


@attrs.define
class Directory:
    """A directory, and a clock that the test sets.

    Args:
        path: the directory.
        data_dir: as a process has it.
        time: seconds.
    """

    path: Path
    time: float = 1000.0
    data_dir: DataDir = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.data_dir = self.another()

    def another(self) -> DataDir:
        """Return that of another process, or of this one after a restart."""
        return DataDir(self.path, RETENTION, now=lambda: self.time)

    def download(self, image: str = IMAGE, content: bytes = b"fetched") -> Path:
        """Download an image."""
        partial = self.data_dir.partial_path(image)
        partial.write_bytes(content)
        state_path(partial).write_text("{}")
        return self.data_dir.publish(image)

    def refusal_reason(self) -> str | None:
        """Return why the download of the image is set aside."""
        return read_manifest(self.path / MANIFEST)[IMAGE].refused

    def names(self) -> set[str]:
        """Return the files other than manifest and locks."""
        return {path.name for path in self.path.iterdir()} - {LOCKS, MANIFEST}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """An empty directory that is open."""
    directory = Directory(tmp_path / "data")
    directory.data_dir.open()
    yield directory
    directory.data_dir.close()


# Removing.


def test_unreferenced_image_is_removed_after_the_retention_time(directory: Directory) -> None:
    directory.download()
    directory.data_dir.claim_files(IMAGE, f"{IMAGE}.json")
    (directory.path / f"{IMAGE}.json").touch()
    directory.time += RETENTION - 1
    assert directory.data_dir.collect_garbage([]) == []
    directory.time += 1
    assert directory.another().collect_garbage([]) == [IMAGE]
    assert directory.names() == set()
    assert directory.data_dir.collect_garbage([]) == []


def test_reference_restarts_the_retention_time(directory: Directory) -> None:
    directory.download()
    directory.time += 10 * RETENTION
    assert directory.data_dir.collect_garbage([IMAGE, "rhcos-unknown"]) == []
    directory.time += RETENTION - 1
    assert directory.another().collect_garbage([]) == []
    directory.time += 1
    assert directory.another().collect_garbage([]) == [IMAGE]


def test_reference_in_the_future_counts_from_now(directory: Directory) -> None:
    directory.time += 100 * RETENTION
    directory.download()
    directory.time -= 100 * RETENTION
    assert directory.another().collect_garbage([]) == []
    directory.time += RETENTION - 1
    assert directory.another().collect_garbage([]) == []
    directory.time += 1
    assert directory.another().collect_garbage([]) == [IMAGE]


def test_image_referred_to_by_another_process_stays(directory: Directory) -> None:
    directory.download()
    other = directory.another()
    for _ in range(5):
        directory.time += RETENTION * 0.75
        assert other.collect_garbage([IMAGE]) == []
        assert directory.data_dir.collect_garbage([]) == []
    assert directory.names() == {IMAGE}


def test_locked_image_stays(directory: Directory) -> None:
    directory.download()
    directory.time += RETENTION
    with directory.another().lock(IMAGE, Interruption()):
        assert directory.data_dir.collect_garbage([]) == []
    assert directory.data_dir.collect_garbage([]) == [IMAGE]


def test_unreferenced_partial_file_is_removed(directory: Directory) -> None:
    directory.data_dir.partial_path(IMAGE).touch()
    directory.time += RETENTION
    assert directory.data_dir.collect_garbage([]) == [IMAGE]
    assert directory.names() == set()


@pytest.mark.parametrize("how", ["from the beginning", "over ours", "while ours is fetched"])
def test_file_of_an_operator_stays(directory: Directory, how: str) -> None:
    path = directory.path / IMAGE
    if how == "over ours":
        directory.download()
    elif how == "while ours is fetched":
        directory.data_dir.partial_path(IMAGE).write_bytes(b"ours")
    path.write_bytes(b"by hand")
    os.utime(path, (1, 1))
    if how == "while ours is fetched":
        assert directory.data_dir.publish(IMAGE) == path
    assert not directory.data_dir.set_aside(IMAGE, "bad")
    directory.time += RETENTION
    directory.data_dir.collect_garbage([])
    assert path.read_bytes() == b"by hand"
    assert directory.names() == {IMAGE}


def test_file_restored_from_a_backup_is_recognized(directory: Directory) -> None:
    path = directory.download()
    status = path.stat()
    path.rename(directory.path / "aside")
    path.write_bytes(b"fetched")
    os.utime(path, ns=(0, status.st_mtime_ns))
    directory.time += RETENTION
    assert directory.data_dir.collect_garbage([]) == [IMAGE]
    assert directory.names() == {"aside"}


@pytest.mark.parametrize("content", [None, "", '{"version": 2, "images": {}}'])
def test_without_a_manifest_nothing_is_removed(directory: Directory, content: str | None) -> None:
    directory.download()
    if content is None:
        (directory.path / MANIFEST).unlink()
    else:
        (directory.path / MANIFEST).write_text(content)
    directory.time += 10 * RETENTION
    assert directory.data_dir.collect_garbage([]) == []
    assert directory.names() == {IMAGE}


STEPS = st.lists(
    st.sampled_from(
        ["fetch", "by hand", "set aside", "collect", "wait", "restart", "part", "remove", "need space"]
    )
)


@given(STEPS, st.sets(st.sampled_from([IMAGE, "other"])))
def test_no_sequence_of_steps_removes_foreign_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], kept: set[str]
) -> None:
    directory = Directory(tmp_path_factory.mktemp("data"))
    path, theirs = (
        directory.path / IMAGE,
        {"notes.txt", "rhcos-full-iso-2-x86_64.iso", ".hidden", f"{IMAGE}.bak"},
    )
    for name in theirs:
        (directory.path / name).write_text("theirs")
    by_hand = False
    for step in steps:
        if step == "fetch" and not path.exists():
            directory.download()
        elif step == "by hand":
            path.write_bytes(b"by hand")
            os.utime(path, (1, 1))
            by_hand = True
        elif step == "remove" and path.exists():
            path.unlink()
            by_hand = False
        elif step == "wait":
            directory.time += RETENTION
        else:
            _step(directory, step, kept)
        assert directory.names() >= theirs
        assert not by_hand or path.read_bytes() == b"by hand"
    assert {name: (directory.path / name).read_text() for name in theirs} == dict.fromkeys(theirs, "theirs")


def _step(directory: Directory, step: str, kept: set[str]) -> None:
    if step == "set aside":
        directory.data_dir.set_aside(IMAGE, "bad")
    elif step == "collect":
        directory.data_dir.collect_garbage(kept)
    elif step == "part":
        directory.data_dir.partial_path(IMAGE).touch()
    elif step == "need space":
        with suppress(Unavailable), directory.data_dir.quota.reserve("other") as check:
            check(0, 2**60)
    elif step == "restart":
        directory.data_dir = directory.another()
        directory.data_dir.open()
        directory.data_dir.close()


# Setting aside.


def test_refused_image_is_set_aside_with_its_reason(directory: Directory) -> None:
    directory.download()
    assert directory.refusal_reason() is None
    assert directory.data_dir.set_aside(IMAGE, "no ISO")
    assert directory.refusal_reason() == "no ISO"
    assert directory.names() == {REFUSED}
    directory.data_dir.collect_garbage([IMAGE])
    assert directory.names() == {REFUSED}


def test_refused_image_is_removed_once_it_is_replaced(directory: Directory) -> None:
    directory.download()
    directory.data_dir.set_aside(IMAGE, "no ISO")
    directory.download()
    directory.data_dir.collect_garbage([IMAGE])
    assert directory.names() == {IMAGE}
    assert directory.refusal_reason() is None


def test_refused_image_is_removed_when_space_is_short(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    data_dir = DataDir(path, max_bytes=20_000)
    data_dir.partial_path(IMAGE).write_bytes(bytes(15_000))
    data_dir.publish(IMAGE)
    with data_dir.quota.reserve("b") as check, pytest.raises(Unavailable, match="not enough disk space"):
        check(0, 10_000)
    data_dir.set_aside(IMAGE, "no ISO")
    with data_dir.quota.reserve("b") as check:
        check(0, 10_000)
    assert not (path / REFUSED).exists()


def test_snapshot_store_takes_no_room_of_images(tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm", ".unusable"):
        (tmp_path / f"{DATABASE_FILE}{suffix}").write_bytes(bytes(60_000))
    quota = DataDir(tmp_path, max_bytes=20_000).quota
    assert quota.free_bytes() == 20_000
    (tmp_path / "image.iso").write_bytes(bytes(5_000))
    assert quota.free_bytes() == 15_000
    usage = quota.measure()
    assert (usage.counted, usage.excluded) == (5_000, 240_000)
    assert 0 < usage.free <= usage.size


def test_setting_aside_overwrites_no_foreign_file(directory: Directory) -> None:
    directory.download()
    (directory.path / REFUSED).write_text("theirs")
    assert not directory.data_dir.set_aside(IMAGE, "no ISO")
    assert (directory.path / REFUSED).read_text() == "theirs"


# After a kill.


def test_open_removes_temporary_files(directory: Directory) -> None:
    directory.data_dir.close()
    ours = {
        ".rhcos-x.iso.0a1b2c3d.part",
        "..rhcos-x.iso.part.json.0a1b2c3d.part",
        f".{MANIFEST}.0a1b2c3d.part",
    }
    theirs = {"x.0a1b2c3d.part", ".rhcos-notes.part", ".rhcos-1.iso.0a1b2c3d.part.bak", f".{IMAGE}.part"}
    for name in ours | theirs:
        (directory.path / name).touch()
    directory.data_dir.open()
    assert directory.names() == theirs


def test_open_removes_nothing_while_another_process_is_present(directory: Directory) -> None:
    left = directory.path / ".rhcos-x.iso.0a1b2c3d.part"
    left.touch()
    other = directory.another()
    other.open()
    assert left.exists()
    directory.data_dir.close()
    other.close()
    other.open()
    assert not left.exists()
    other.close()


def test_scratch_directory_is_cleaned_under_the_same_rules(directory: Directory) -> None:
    """Which is that of several services perhaps, each with its own ``DATA_DIR``."""
    scratch = directory.path / "scratch"
    one, other = (DataDir(directory.path / name, scratch=scratch) for name in ("one", "other"))
    one.open()
    left = scratch / ".rhcos-scratch.0a1b2c3d.part"
    left.mkdir()
    other.open()
    assert left.exists()
    one.close()
    other.close()
    one.open()
    assert not left.exists()
    one.close()


def test_kill_while_publishing_loses_nothing(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = directory.data_dir.partial_path(IMAGE)
    partial.write_bytes(b"fetched")
    with monkeypatch.context() as patch:
        patch.setattr(data_dir, "publish_file", None)  # killed when the manifest is written, before renaming
        with pytest.raises(TypeError):
            directory.data_dir.publish(IMAGE)
    assert directory.names() == {partial.name}
    path = directory.another().publish(IMAGE)
    assert path.read_bytes() == b"fetched"
    assert json.loads((directory.path / MANIFEST).read_bytes())["images"][IMAGE]["files"][IMAGE]["size"] == 7


def test_directory_that_is_made_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with capturedLogs() as events:
        for _ in range(2):
            create_directory(path)
    assert [formatEvent(event) for event in events] == [f"created the directory {path}, which did not exist"]
    assert path.is_dir()
