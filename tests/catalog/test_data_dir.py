from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from image_service.catalog.download.partial_file import state_path
from image_service.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.concurrency.interruption import Interruption
from image_service.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "rhcos-full-iso-1-x86_64.iso"
REFUSED = f"{IMAGE}.refused"
RETENTION = 100.0


@attrs.define
class Bench:
    """A directory, and a time that is set by hand.

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
        """As another process has it, or this one after a restart."""
        return DataDir(self.path, RETENTION, now=lambda: self.time)

    def fetched(self, image: str = IMAGE, content: bytes = b"fetched") -> Path:
        """Let an image be fetched."""
        partial = self.data_dir.partial(image)
        partial.write_bytes(content)
        state_path(partial).write_text("{}")
        return self.data_dir.publish(image)

    def names(self) -> set[str]:
        """What is in the directory but our own books."""
        return {path.name for path in self.path.iterdir()} - {LOCKS, MANIFEST}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """An empty directory that is open."""
    bench = Bench(tmp_path / "data")
    bench.data_dir.open()
    yield bench
    bench.data_dir.close()


# What is removed.


def test_what_was_fetched_goes_when_no_configuration_has_had_it_for_long(bench: Bench) -> None:
    bench.fetched()
    bench.data_dir.claim(IMAGE, f"{IMAGE}.json")
    (bench.path / f"{IMAGE}.json").touch()
    bench.time += RETENTION - 1
    assert bench.data_dir.collect_garbage([]) == []
    bench.time += 1
    assert bench.another().collect_garbage([]) == [IMAGE]
    assert bench.names() == set()
    assert bench.data_dir.collect_garbage([]) == []


def test_what_is_kept_begins_its_time_anew(bench: Bench) -> None:
    bench.fetched()
    bench.time += 10 * RETENTION
    assert bench.data_dir.collect_garbage([IMAGE, "rhcos-unknown"]) == []
    bench.time += RETENTION - 1
    assert bench.another().collect_garbage([]) == []
    bench.time += 1
    assert bench.another().collect_garbage([]) == [IMAGE]


def test_what_another_process_refers_to_stays(bench: Bench) -> None:
    bench.fetched()
    other = bench.another()
    for _ in range(5):
        bench.time += RETENTION * 0.75
        other.refer([IMAGE])
        assert bench.data_dir.collect_garbage([]) == []
    assert bench.names() == {IMAGE}


def test_what_somebody_has_just_now_stays(bench: Bench) -> None:
    bench.fetched()
    bench.time += RETENTION
    with bench.another().lock(IMAGE, Interruption()):
        assert bench.data_dir.collect_garbage([]) == []
    assert bench.data_dir.collect_garbage([]) == [IMAGE]


def test_a_part_of_what_nobody_wants_any_more_goes(bench: Bench) -> None:
    bench.data_dir.partial(IMAGE).touch()
    bench.time += RETENTION
    assert bench.data_dir.collect_garbage([]) == [IMAGE]
    assert bench.names() == set()


@pytest.mark.parametrize("how", ["from the beginning", "over ours", "while ours is fetched"])
def test_what_was_put_there_by_hand_stays(bench: Bench, how: str) -> None:
    path = bench.path / IMAGE
    if how == "over ours":
        bench.fetched()
    elif how == "while ours is fetched":
        bench.data_dir.partial(IMAGE).write_bytes(b"ours")
    path.write_bytes(b"by hand")
    os.utime(path, (1, 1))
    if how == "while ours is fetched":
        assert bench.data_dir.publish(IMAGE) == path
    assert not bench.data_dir.set_aside(IMAGE, "bad")
    bench.time += RETENTION
    bench.data_dir.collect_garbage([])
    assert path.read_bytes() == b"by hand"
    assert bench.names() == {IMAGE}


def test_what_was_restored_from_a_backup_is_known_again(bench: Bench) -> None:
    path = bench.fetched()
    status = path.stat()
    path.rename(bench.path / "aside")
    path.write_bytes(b"fetched")
    os.utime(path, ns=(0, status.st_mtime_ns))
    bench.time += RETENTION
    assert bench.data_dir.collect_garbage([]) == [IMAGE]
    assert bench.names() == {"aside"}


@pytest.mark.parametrize("content", [None, "", '{"version": 2, "images": {}}'])
def test_without_books_nothing_is_removed(bench: Bench, content: str | None) -> None:
    bench.fetched()
    if content is None:
        (bench.path / MANIFEST).unlink()
    else:
        (bench.path / MANIFEST).write_text(content)
    bench.time += 10 * RETENTION
    assert bench.data_dir.collect_garbage([]) == []
    assert bench.names() == {IMAGE}


STEPS = st.lists(
    st.sampled_from(
        ["fetch", "by hand", "set aside", "collect", "wait", "restart", "part", "remove", "relieve"]
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(STEPS, st.sets(st.sampled_from([IMAGE, "other"])))
def test_whatever_happens_what_is_not_ours_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], kept: set[str]
) -> None:
    bench = Bench(tmp_path_factory.mktemp("data"))
    path, theirs = bench.path / IMAGE, {"notes.txt", "rhcos-full-iso-2-x86_64.iso", ".hidden", f"{IMAGE}.bak"}
    for name in theirs:
        (bench.path / name).write_text("theirs")
    by_hand = False
    for step in steps:
        if step == "fetch" and not path.exists():
            bench.fetched()
        elif step == "by hand":
            path.write_bytes(b"by hand")
            os.utime(path, (1, 1))
            by_hand = True
        elif step == "remove" and path.exists():
            path.unlink()
            by_hand = False
        elif step == "wait":
            bench.time += RETENTION
        else:
            _step(bench, step, kept)
        assert bench.names() >= theirs
        assert not by_hand or path.read_bytes() == b"by hand"
    assert {name: (bench.path / name).read_text() for name in theirs} == dict.fromkeys(theirs, "theirs")


def _step(bench: Bench, step: str, kept: set[str]) -> None:
    if step == "set aside":
        bench.data_dir.set_aside(IMAGE, "bad")
    elif step == "collect":
        bench.data_dir.collect_garbage(kept)
    elif step == "part":
        bench.data_dir.partial(IMAGE).touch()
    elif step == "relieve":
        bench.data_dir._remove_refused()
    elif step == "restart":
        bench.data_dir = bench.another()
        bench.data_dir.open()
        bench.data_dir.close()


# What is set aside.


def test_what_is_refused_is_set_aside_with_the_reason(bench: Bench) -> None:
    bench.fetched()
    assert bench.data_dir.refused(IMAGE) is None
    assert bench.data_dir.set_aside(IMAGE, "no ISO")
    assert bench.another().refused(IMAGE) == "no ISO"
    assert bench.names() == {REFUSED}
    bench.data_dir.collect_garbage([IMAGE])
    assert bench.names() == {REFUSED}


def test_it_goes_when_another_is_there(bench: Bench) -> None:
    bench.fetched()
    bench.data_dir.set_aside(IMAGE, "no ISO")
    bench.fetched()
    bench.data_dir.collect_garbage([IMAGE])
    assert bench.names() == {IMAGE}
    assert bench.data_dir.refused(IMAGE) is None


def test_it_goes_when_the_room_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    data_dir = DataDir(path, max_bytes=20_000)
    data_dir.partial(IMAGE).write_bytes(bytes(15_000))
    data_dir.publish(IMAGE)
    with data_dir.reserved("b") as check, pytest.raises(Unavailable, match="not enough disk space"):
        check(0, 10_000)
    data_dir.set_aside(IMAGE, "no ISO")
    with data_dir.reserved("b") as check:
        check(0, 10_000)
    assert not (path / REFUSED).exists()


def test_nothing_of_somebody_else_is_overwritten_by_it(bench: Bench) -> None:
    bench.fetched()
    (bench.path / REFUSED).write_text("theirs")
    assert not bench.data_dir.set_aside(IMAGE, "no ISO")
    assert (bench.path / REFUSED).read_text() == "theirs"


# What a killed process leaves.


def test_what_was_left_half_written_goes(bench: Bench) -> None:
    bench.data_dir.close()
    ours = {
        ".rhcos-x.iso.0a1b2c3d.part",
        "..rhcos-x.iso.part.json.0a1b2c3d.part",
        f".{MANIFEST}.0a1b2c3d.part",
    }
    theirs = {"x.0a1b2c3d.part", ".rhcos-notes.part", ".rhcos-1.iso.0a1b2c3d.part.bak", f".{IMAGE}.part"}
    for name in ours | theirs:
        (bench.path / name).touch()
    bench.data_dir.open()
    assert bench.names() == theirs


def test_not_while_another_process_may_be_writing_it(bench: Bench) -> None:
    left = bench.path / ".rhcos-x.iso.0a1b2c3d.part"
    left.touch()
    other = bench.another()
    other.open()
    assert left.exists()
    bench.data_dir.close()
    other.close()
    other.open()
    assert not left.exists()
    other.close()


def test_the_same_holds_for_the_directory_for_scratch_files(bench: Bench) -> None:
    """Which is that of several services perhaps, each with its own ``DATA_DIR``."""
    scratch = bench.path / "scratch"
    one, other = (DataDir(bench.path / name, scratch=scratch) for name in ("one", "other"))
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


def test_who_is_killed_while_publishing_loses_nothing(bench: Bench) -> None:
    partial = bench.data_dir.partial(IMAGE)
    partial.write_bytes(b"fetched")
    bench.data_dir.record(IMAGE, partial, IMAGE)  # and here it is killed
    assert bench.names() == {partial.name}
    path = bench.another().publish(IMAGE)
    assert path.read_bytes() == b"fetched"
    assert json.loads((bench.path / MANIFEST).read_bytes())["images"][IMAGE]["files"][IMAGE]["size"] == 7
