"""A disk that is customized in place is as before or done, whatever interrupts the call."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from image_service.core.errors import UnsafeImage
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.customization.disk_writer import open_for_writing
from image_service.toolkit.customization.patch import Change, Patch
from image_service.toolkit.customization.redo_file import Redo, read_redo, redo_path, write_redo
from image_service.toolkit.workspace.private_directory import remove_leftovers
from image_service.toolkit.workspace.workspace import Workspace
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.coreos_disk import ENTRY, MIB, build_disk, check_boot, read_boot_file
from tests.toolkit.customization.calling import call, write_inputs
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    CallCustomize = Callable[..., dict[str, Any]]

_ALL_STEPS = range(1, 30)  # more than any call has
_SOME_STEPS = {".raw": (2, 6), ".qcow2": (2, 7)}
"""The redo file is not finished; the disk is written in part (raw) or wholly."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "scratch").mkdir()
    return [*write_inputs(tmp_path / "inputs"), f"--scratch={tmp_path / 'scratch'}"]


@pytest.fixture
def customize(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> CallCustomize:
    return lambda disk, *words: call(capsys, disk, "--in-place", *words, *arguments)


@pytest.fixture(params=["raw", "qcow2"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A disk in a directory of its own, and the file of which it is a copy."""
    source = build_disk(tmp_path)
    if request.param == "qcow2":
        run_client("qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, tmp_path / "source.qcow2")
        source = tmp_path / "source.qcow2"
    (tmp_path / "disks").mkdir()
    return tmp_path / "disks" / f"disk.{request.param}", source


def guest_view(image: Path) -> bytes:
    raw = image.with_name("guest-view")
    run_client("qemu-img", "convert", "-f", image.suffix[1:], "-O", "raw", image, raw)
    content = raw.read_bytes()
    raw.unlink()
    return content


def interrupt(name: str, step: int, disk: Path, arguments: list[str]) -> int:
    module = "tests.toolkit.customization.interrupted"
    words = [sys.executable, "-m", module, name, str(step), str(disk), "--in-place", *arguments]
    return subprocess.run(words, capture_output=True, check=False).returncode


def each_step(
    name: str, steps: Iterable[int], images: tuple[Path, Path], arguments: list[str]
) -> Iterator[int]:
    """Interrupt a call for a fresh disk at each step, until one is not; yield the exit statuses."""
    disk, source = images
    for step in steps:
        shutil.copy(source, disk)
        status = interrupt(name, step, disk, arguments)
        yield status
        if status == 0:
            return


def check_kills(
    steps: Iterable[int], images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    disk, source = images
    before = guest_view(source)
    shutil.copy(source, disk)
    customize(disk)
    done = guest_view(disk)
    states = set()
    for status in each_step("SIGKILL", steps, images, arguments):
        if status == 0:
            break
        assert status == -signal.SIGKILL
        was_begun = redo_path(disk).exists()
        states.add((was_begun, guest_view(disk) == before))
        report = customize(disk)
        if was_begun or report["exit"] == 0:
            assert report["exit"] == 0, report
        else:  # killed after the redo file was removed
            assert "a config is already there" in report["error"]["reason"]
        assert guest_view(disk) == done
        assert list(disk.parent.iterdir()) == [disk]
        assert list((disk.parents[1] / "scratch").iterdir()) == []
        if disk.suffix == ".qcow2":
            run_client("qemu-img", "check", "-f", "qcow2", disk)
    assert (True, False) in states, "one was killed in the middle"


def test_killed_call_is_finished_by_the_same_call(
    images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    check_kills(_SOME_STEPS[images[0].suffix], images, arguments, customize)


@pytest.mark.soak
def test_call_killed_at_every_step_is_finished(
    images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    check_kills(_ALL_STEPS, images, arguments, customize)


def check_terminations(
    steps: Iterable[int], images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    disk, source = images
    shutil.copy(source, disk)
    customize(disk)
    views = {guest_view(source), guest_view(disk)}
    for status in each_step("SIGTERM", steps, images, arguments):
        assert status in {0, 128 + signal.SIGTERM}
        assert guest_view(disk) in views
        assert list(disk.parent.iterdir()) == [disk]
        assert list((disk.parents[1] / "scratch").iterdir()) == []


def test_sigterm_leaves_a_disk_as_before_or_done(
    images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    check_terminations(_SOME_STEPS[images[0].suffix], images, arguments, customize)


@pytest.mark.soak
def test_sigterm_at_every_step_leaves_a_disk_as_before_or_done(
    images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    check_terminations(_ALL_STEPS, images, arguments, customize)


def test_other_call_after_a_killed_one_finishes_that_and_is_refused(
    tmp_path: Path, arguments: list[str], customize: CallCustomize
) -> None:
    disk = build_disk(tmp_path)
    assert interrupt("SIGKILL", 5, disk, arguments) == -signal.SIGKILL
    report = customize(disk, "--karg-append=other")
    assert report["exit"] == 6
    assert "a config is already there: that of a killed call" in report["error"]["reason"]
    check_boot(disk)
    assert b" other" not in read_boot_file(disk, ENTRY)
    assert b" answer=42" in read_boot_file(disk, ENTRY)
    assert not redo_path(disk).exists()


def test_redo_file_of_another_disk_is_refused(
    tmp_path: Path, arguments: list[str], customize: CallCustomize
) -> None:
    disk = build_disk(tmp_path)
    assert interrupt("SIGKILL", 5, disk, arguments) == -signal.SIGKILL
    build_disk(tmp_path)  # with other identifiers
    before = disk.read_bytes()
    report = customize(disk)
    assert report["exit"] == 6
    assert "is neither as before nor as after" in report["error"]["reason"]
    assert disk.read_bytes() == before


def test_redo_file_that_was_not_finished_is_replaced(tmp_path: Path, customize: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    redo = Redo(DiskFormat.RAW, "x", Patch((Change(0, bytes(512), b"\xff" * 512),)))
    write_redo(redo_path(disk), redo)
    os.truncate(redo_path(disk), redo_path(disk).stat().st_size - 1)
    assert customize(disk)["exit"] == 0
    check_boot(disk)
    assert not redo_path(disk).exists()


def test_redo_file_is_private_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    changes = (Change(512, b"a" * 512, b"b" * 512), Change(4096, b"c" * 1024, b"d" * 1024))
    redo = Redo(DiskFormat.QCOW2, "digest", Patch(changes))
    path = redo_path(tmp_path / "disk")
    write_redo(path, redo)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_redo(path, {os.geteuid()}) == redo


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_redo_file_that_is_no_file_is_refused(tmp_path: Path, customize: CallCustomize, kind: str) -> None:
    disk = build_disk(tmp_path)
    before = disk.read_bytes()
    if kind == "symlink":
        redo_path(disk).symlink_to(tmp_path / "inputs")
    else:
        redo_path(disk).mkdir()
    assert customize(disk)["exit"] == 6
    assert disk.read_bytes() == before


@pytest.mark.parametrize(
    ("description", "data"),
    [
        (b"not JSON", b""),
        (b"[" * 100_000, b""),
        (b"[]", b""),
        (b'{"format": "ova", "customization": "", "changes": [[0, 512]]}', bytes(1024)),
        (b'{"format": "raw", "customization": "", "changes": []}', b""),
        (b'{"format": "raw", "customization": "", "changes": [["0", 512]]}', bytes(1024)),
        (b'{"format": "raw", "customization": "", "changes": [[-512, 512]]}', bytes(1024)),
        (b'{"format": "raw", "customization": "", "changes": [[1e3, 512]]}', bytes(1024)),
        (b'{"format": "raw", "customization": "", "changes": [[9223372036854775808, 512]]}', bytes(1024)),
        (b'{"format": "raw", "customization": "", "changes": [[0, 512], [0, 512]]}', bytes(2048)),
        (b'{"format": "raw", "customization": "", "changes": [[0, 512]]}', b""),
        (b'{"format": "raw", "customization": "", "changes": [[0, 512]]}', bytes(1025)),
        (b'{"format": "raw", "customization": "", "changes": [[0, -512]]}', bytes(1024)),
    ],
)
def test_redo_file_that_another_program_has_made_is_refused(
    tmp_path: Path, description: bytes, data: bytes
) -> None:
    path = redo_path(tmp_path / "disk")
    content = b"IMAGE-TOOLKIT-R1" + len(description).to_bytes(4) + description + data
    path.write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(UnsafeImage, match="is not a redo file of image-toolkit"):
        read_redo(path, {os.geteuid()})


def test_disk_that_a_virtual_machine_has_open_is_refused(
    images: tuple[Path, Path], customize: CallCustomize
) -> None:
    disk, source = images
    shutil.copy(source, disk)
    command = [needs_client("qemu-io"), "-f", disk.suffix[1:], str(disk)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as machine:
        assert machine.stdin
        assert machine.stdout
        machine.stdin.write(b"read 0 512\n")
        machine.stdin.flush()
        machine.stdout.readline()
        report = customize(disk)
        machine.communicate(b"quit\n")
    assert report["exit"] == 6
    assert "is open in another program" in report["error"]["reason"]
    assert customize(disk)["exit"] == 0


def test_failed_write_is_undone(
    tmp_path: Path, customize: CallCustomize, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = build_disk(tmp_path)
    before = disk.read_bytes()
    real, calls = os.pwrite, []

    def fail_later(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    original_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith("-redo"):
            monkeypatch.setattr(os, "pwrite", fail_later)  # from here on the disk is written
        original_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    report = customize(disk)
    assert report["exit"] != 0
    assert len(calls) > 4
    assert disk.read_bytes() == before
    assert not redo_path(disk).exists()


@pytest.mark.acceptance
@pytest.mark.parametrize("moment", ["before", "after"])
def test_timeout_while_qemu_io_writes_is_undone(
    tmp_path: Path, customize: CallCustomize, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The first change is written or not when the time is up; the others are not."""
    source = build_disk(tmp_path)
    disk = tmp_path / "disk.qcow2"
    run_client("qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, disk)
    before = guest_view(disk)
    written: list[int] = []
    real = Workspace.run

    def run(workspace: Workspace, command: list[str], **options: Any) -> bytes:
        if command[0] != "qemu-io" or written:
            return real(workspace, command, **options)
        first, *others = options["stdin"].splitlines(keepends=True)
        written.append(len(others))
        waits = b"flush\nsleep 600000\n"
        lines = [first, waits, *others] if moment == "after" else [waits, first, *others]
        monkeypatch.setattr(workspace, "_deadline", time.monotonic() + 2)
        return real(workspace, command, **{**options, "stdin": b"".join(lines)})

    monkeypatch.setattr(Workspace, "run", run)
    report = customize(disk, "--timeout=600")
    assert report["exit"] == 8, report
    assert written[0] > 1
    assert guest_view(disk) == before
    assert not redo_path(disk).exists()
    run_client("qemu-img", "check", "-f", "qcow2", disk)
    assert customize(disk)["exit"] == 0


@pytest.mark.acceptance
def test_of_two_calls_at_once_one_customizes(
    images: tuple[Path, Path], arguments: list[str], customize: CallCustomize
) -> None:
    disk, source = images
    shutil.copy(source, disk)
    words = [sys.executable, "-m", "image_service.toolkit", "customize", str(disk), "--in-place", *arguments]
    calls = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    messages = [each.communicate()[1] for each in calls]
    assert sorted(each.returncode for each in calls) == [0, 6], messages
    refused = next(text for text, each in zip(messages, calls, strict=True) if each.returncode)
    assert "by another call" in refused or "is open in another" in refused or "already there" in refused
    assert list(disk.parent.iterdir()) == [disk]
    shutil.copy(disk, disk.with_suffix(f".both{disk.suffix}"))
    shutil.copy(source, disk)
    customize(disk)
    assert guest_view(disk.with_suffix(f".both{disk.suffix}")) == guest_view(disk)


def test_disk_of_another_call_is_refused(images: tuple[Path, Path], customize: CallCustomize) -> None:
    disk, source = images
    shutil.copy(source, disk)
    with open_for_writing(disk):
        report = customize(disk)
    assert report["exit"] == 6
    assert "is being customized by another call" in report["error"]["reason"]
    assert disk.read_bytes() == source.read_bytes()


def test_program_of_a_killed_call_is_waited_for(
    tmp_path: Path, arguments: list[str], customize: CallCustomize
) -> None:
    disk = build_disk(tmp_path)
    assert interrupt("SIGKILL", 5, disk, arguments) == -signal.SIGKILL
    with ExitStack() as stack:
        stack.enter_context(open_for_writing(disk))
        timer = threading.Timer(1, stack.close)
        timer.start()
        assert customize(disk)["exit"] == 0
        timer.join()


def test_program_of_a_killed_call_that_does_not_end_is_killed(
    tmp_path: Path, arguments: list[str], customize: CallCustomize
) -> None:
    """Such as bwrap's child, which waits without end if bwrap is killed while it starts."""
    disk = build_disk(tmp_path)
    assert interrupt("SIGKILL", 5, disk, arguments) == -signal.SIGKILL
    (leftover,) = (tmp_path / "scratch").iterdir()
    environment = {**os.environ, "TMPDIR": str(leftover / "content")}
    with open_for_writing(disk) as descriptor:
        program = subprocess.Popen(["sleep", "600"], env=environment, pass_fds=[descriptor])
    assert customize(disk)["exit"] == 0
    assert program.wait() == -signal.SIGKILL


@pytest.fixture
def lazy_disk(tmp_path: Path) -> Path:
    """A qcow2 disk with a snapshot, whose refcounts on disk may be behind while it is open."""
    disk = tmp_path / "disk.qcow2"
    source = build_disk(tmp_path)
    options = ("-O", "qcow2", "-o", "lazy_refcounts=on")
    run_client("qemu-img", "convert", "-f", "raw", *options, source, disk)
    run_client("qemu-img", "snapshot", "-c", "before", disk)
    return disk


@pytest.mark.acceptance
def test_snapshot_keeps_its_content(lazy_disk: Path, customize: CallCustomize) -> None:
    before = guest_view(lazy_disk)
    assert customize(lazy_disk)["exit"] == 0
    run_client("qemu-img", "check", "-f", "qcow2", lazy_disk)
    assert guest_view(lazy_disk) != before
    run_client("qemu-img", "snapshot", "-a", "before", lazy_disk)
    assert guest_view(lazy_disk) == before


def check_finished(disk: Path, before: bytes, customize: CallCustomize) -> None:
    """Check that the same call finishes the customization, and that the snapshot keeps its content."""
    report = customize(disk)
    assert report["exit"] == 0, report
    run_client("qemu-img", "check", "-f", "qcow2", disk)
    assert not redo_path(disk).exists()
    run_client("qemu-img", "snapshot", "-a", "before", disk)
    assert guest_view(disk) == before


@pytest.mark.acceptance
@pytest.mark.parametrize("step", [soaked(4), 6, soaked(7), 8])
def test_killed_call_for_lazy_refcounts_is_finished(
    lazy_disk: Path, arguments: list[str], customize: CallCustomize, step: int
) -> None:
    before = guest_view(lazy_disk)
    assert interrupt("SIGKILL", step, lazy_disk, arguments) == -signal.SIGKILL
    check_finished(lazy_disk, before, customize)


@pytest.mark.acceptance
def test_qemu_io_that_was_killed_after_any_write_leaves_refcounts_that_are_repaired(
    tmp_path: Path, lazy_disk: Path, arguments: list[str], customize: CallCustomize
) -> None:
    before = guest_view(lazy_disk)
    assert interrupt("SIGKILL", 4, lazy_disk, arguments) == -signal.SIGKILL
    remove_leftovers(tmp_path / "scratch")
    with open_for_writing(lazy_disk, wait_seconds=60):  # until the programs of the killed call have ended
        redo = read_redo(redo_path(lazy_disk), {os.geteuid()})
    assert redo
    begun = {path: path.read_bytes() for path in (lazy_disk, redo_path(lazy_disk))}
    data = lazy_disk.with_name("data")
    for count in range(1, len(redo.patch.changes) + 1):
        for path, content in begun.items():
            path.write_bytes(content)
        for change in redo.patch.changes[:count]:
            data.write_bytes(change.after)
            write = f"write -s {data} {change.offset} {len(change.after)}"
            command = [needs_client("qemu-io"), "-f", "qcow2", "-c", write, "-c", "flush", "-c", "sigraise 9"]
            killed = subprocess.run([*command, lazy_disk], capture_output=True, check=False)
            assert killed.returncode == -signal.SIGKILL
        check_finished(lazy_disk, before, customize)


def test_symlink_to_a_disk_is_followed_and_the_redo_file_is_beside_the_disk(
    tmp_path: Path, arguments: list[str], customize: CallCustomize
) -> None:
    disk = build_disk(tmp_path)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to(disk)
    assert interrupt("SIGKILL", 5, link, arguments) == -signal.SIGKILL
    assert redo_path(disk).exists()
    assert customize(disk)["exit"] == 0


def test_large_sparse_disk_stays_sparse_and_is_not_read(tmp_path: Path, customize: CallCustomize) -> None:
    disk = build_disk(tmp_path, disk_bytes=10 * 1024 * MIB)
    before = disk.stat().st_blocks
    assert customize(disk)["exit"] == 0
    assert disk.stat().st_blocks < before + 1024
    check_boot(disk)
