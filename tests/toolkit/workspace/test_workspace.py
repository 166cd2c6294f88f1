"""Outputs, reservations and limits of a call."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import NoRoom, TimedOut, UnusableOutput
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace
from tests.toolkit.workspace.calls import MIB, workspace_in

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_new_output_has_the_mode_of_the_umask(tmp_path: Path, mask: int) -> None:
    with workspace_in(tmp_path) as call, umask(mask):
        with call.output(tmp_path / "out") as path:
            assert mode_of(path) == 0o600
            assert mode_of(path.parent) == 0o700
            path.write_bytes(b"new")
            assert not (tmp_path / "out").exists()
        assert mode_of(tmp_path / "out") == 0o666 & ~mask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "scratch"]


def test_replaced_output_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o640)
    with workspace_in(tmp_path) as call, call.output(out) as path:
        path.write_bytes(b"new")
        assert out.read_bytes() == b"old"
    assert (out.read_bytes(), mode_of(out)) == (b"new", 0o640)


def test_failed_output_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    before = out.stat()
    with workspace_in(tmp_path) as call, pytest.raises(FileNotFoundError), call.output(out) as path:
        path.with_name("nothing").rename(path)
    assert out.stat() == before
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "scratch"]


def test_output_that_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "symlink").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    faults = {
        tmp_path / "symlink": "is a symlink; the output must be a plain file, or not exist",
        tmp_path / "dangling": "is a symlink; the output must be a plain file, or not exist",
        tmp_path / "directory": "is a directory; the output must be a plain file, or not exist",
        tmp_path
        / "fifo": "is a device or another special file; the output must be a plain file, or not exist",
        Path(
            "/dev/null"
        ): "is a device or another special file; the output must be a plain file, or not exist",
        tmp_path / "nothing" / "out": "No such file or directory",
        tmp_path / "file" / "out": "Not a directory",
    }
    before = sorted(tmp_path.rglob("*"))
    with workspace_in(tmp_path) as call:
        for path, fault in faults.items():
            with pytest.raises(UnusableOutput) as failure, call.output(path):
                pytest.fail("yielded")
            assert str(path) in failure.value.detail
            assert failure.value.detail.endswith(fault)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert {*tmp_path.rglob("*")} == {*before, tmp_path / "scratch"}


def test_output_without_a_directory_is_refused_when_its_bytes_are_reserved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with workspace_in(tmp_path) as call:
        for directory in ("nothing", "file"):
            with pytest.raises(UnusableOutput, match="out cannot be made: "):
                call.reserve(1, "the image", beside=tmp_path / directory / "out")


def test_symlink_that_appears_meanwhile_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with workspace_in(tmp_path) as call, pytest.raises(UnusableOutput), call.output(tmp_path / "out"):
        (tmp_path / "out").symlink_to("file")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_does_not_fit_the_limit_is_refused_at_once(tmp_path: Path) -> None:
    with workspace_in(tmp_path, Limits(scratch_bytes=10 * MIB)) as call:
        call.reserve(6 * MIB, "the copy")
        with pytest.raises(NoRoom) as failure:
            call.reserve(5 * MIB, "the image", beside=tmp_path / "out")
    needed = "the image needs 5242880 bytes beside 6291456 bytes of this call"
    assert failure.value.detail == f"{needed}, more than 10485760 (--scratch-bytes)"


def test_what_does_not_fit_the_file_system_is_refused_at_once(tmp_path: Path) -> None:
    with (
        workspace_in(tmp_path) as call,
        pytest.raises(NoRoom, match=r"^the image needs 1152921504606846976 "),
    ):
        call.reserve(1 << 60, "the image")


def test_neighbors_reservations_count_until_they_are_written(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with workspace_in(tmp_path) as one:
        one.reserve(free * 6 // 10, "the image", beside=tmp_path / "out")
        with workspace_in_use(tmp_path) as other:
            other.reserve(free // 10, "a small image")
            with pytest.raises(NoRoom, match=r"has [0-9]+ free beside the [0-9]+ bytes that calls"):
                other.reserve(free * 6 // 10, "a large image")
    with workspace_in(tmp_path) as other:
        other.reserve(free * 6 // 10, "a large image")


@contextmanager
def workspace_in_use(directory: Path) -> Iterator[Workspace]:
    with Workspace(directory / "scratch", Limits(), Progress(lambda *_: None)) as call:
        yield call


def test_unfinished_output_counts_as_written(tmp_path: Path) -> None:
    with (
        workspace_in(tmp_path, Limits(scratch_bytes=MIB)) as call,
        pytest.raises(NoRoom, match=r"^the call has written 2[0-9]+ bytes, more than 1048576"),
        call.output(tmp_path / "out") as path,
    ):
        path.write_bytes(bytes(2 * MIB))
    assert not (tmp_path / "out").exists()


def test_pace_keeps_the_rate_and_the_deadline(tmp_path: Path) -> None:
    with workspace_in(tmp_path, Limits(io_bytes_per_second=MIB, wall_seconds=0.5)) as call:
        call.pace(MIB // 10)
        with pytest.raises(TimedOut):
            call.pace(100 * MIB)


def test_full_file_system_is_named(tmp_path: Path) -> None:
    """In a mount namespace with a file system of 1 MiB."""
    program = """
import sys
from pathlib import Path
from image_service.core.errors import NoRoom
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

with Workspace(Path(sys.argv[1]), Limits(), Progress(lambda *_: None)) as call:
    for work in (
        lambda: call.reserve(2 << 20, "the image"),
        lambda: call.run(["sh", "-c", "head -c 2M /dev/zero > file"]),
    ):
        try:
            work()
        except NoRoom as error:
            print(error.detail)
"""
    mount = 'mount -t tmpfs -o size=1M none "$1" && exec "$2" -c "$3" "$1"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*namespace, "sh", "-c", mount, "sh", tmp_path, sys.executable, program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("the image needs 2097152 bytes, and the file system of")
    assert lines[1].startswith("sh: the file system is full: ")
