"""Private directories: private, removed, and removed by the next call if their process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.workspace.private_directory import PrivateDirectory, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_PROCESS = """
import sys
from pathlib import Path
from image_service.toolkit.workspace.private_directory import PrivateDirectory

private = PrivateDirectory(Path(sys.argv[1]), sys.argv[2])
(private.path / "sub").mkdir()
(private.path / "sub" / "file").write_bytes(b"data")
print(private.path, flush=True)
sys.stdin.read()
"""
NAMES = pytest.mark.parametrize("name", ["", "disk.qcow2", "ä" * 200, "a\nb"])


@pytest.fixture
def neighbor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with a private directory; it ends when its standard input is closed."""
    name = getattr(request, "param", "")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, tmp_path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        yield process
        with suppress(ProcessLookupError):
            process.kill()


@NAMES
def test_directory_is_private_and_is_removed(tmp_path: Path, name: str) -> None:
    private = PrivateDirectory(tmp_path, name)
    assert [oct(path.stat().st_mode & 0o777) for path in (private.path, private.path.parent)] == ["0o700"] * 2
    assert [oct(path.stat().st_mode & 0o777) for path in private.path.parent.iterdir() if path.is_file()] == [
        "0o600"
    ]
    (private.path / "file").write_bytes(b"data")
    private.remove()
    private.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("neighbor", ["", "disk.qcow2", "ä" * 200], indirect=True)
def test_leftover_of_a_killed_process_is_removed(tmp_path: Path, neighbor: subprocess.Popen[bytes]) -> None:
    assert len(list(tmp_path.rglob("file"))) == 1
    neighbor.kill()
    neighbor.wait()
    assert len(list(tmp_path.rglob("file"))) == 1
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_programs_of_a_killed_process_are_killed_and_others_are_not(
    tmp_path: Path, neighbor: subprocess.Popen[bytes]
) -> None:
    (path,) = tmp_path.glob("*/content")
    alike = Path(f"{path}s")
    programs = [
        subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": str(directory)})
        for directory in (path, path / "sub", alike, tmp_path)
    ]
    remove_leftovers(tmp_path)
    assert [program.poll() for program in programs] == [None] * 4
    neighbor.kill()
    neighbor.wait()
    remove_leftovers(tmp_path)
    assert [program.wait() for program in programs[:2]] == [-signal.SIGKILL] * 2
    assert [program.poll() for program in programs[2:]] == [None] * 2
    for program in programs[2:]:
        program.kill()
        program.wait()


def test_directory_of_a_living_process_stays(tmp_path: Path, neighbor: subprocess.Popen[bytes]) -> None:
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.rglob("file"))) == 1
    assert neighbor.poll() is None


@pytest.mark.parametrize("stop", [signal.SIGSTOP], ids=str)
def test_directory_of_a_stopped_process_stays(
    tmp_path: Path, neighbor: subprocess.Popen[bytes], stop: signal.Signals
) -> None:
    neighbor.send_signal(stop)
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.rglob("file"))) == 1


def test_what_others_named_alike_stays(tmp_path: Path) -> None:
    (tmp_path / "image-toolkit.0123abcd").mkdir()
    (tmp_path / "image-toolkit.0123abcd" / "file").touch()
    (tmp_path / "image-toolkit.4567abcd").symlink_to(tmp_path / "image-toolkit.0123abcd")
    (tmp_path / ".disk.4567abcd.part").touch()
    (tmp_path / "image-toolkit.txt").mkdir()
    before = sorted(tmp_path.rglob("*"))
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_directory_whose_process_was_killed_before_it_made_the_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "image-toolkit.0123abcd").mkdir()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_calls_that_make_and_remove_leftovers_at_once_do_not_meet(tmp_path: Path) -> None:
    """Each of four processes makes 200 directories, and finds its own one whole."""
    program = """
import sys
from pathlib import Path
from image_service.toolkit.workspace.private_directory import PrivateDirectory, remove_leftovers

for _ in range(200):
    remove_leftovers(Path(sys.argv[1]))
    private = PrivateDirectory(Path(sys.argv[1]))
    (private.path / "file").write_bytes(b"data")
    assert (private.path / "file").read_bytes() == b"data"
    private.remove()
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, tmp_path]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert list(tmp_path.iterdir()) == []


def test_directory_is_removed_when_the_process_ends_without_removing_it(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from image_service.toolkit.workspace.private_directory import PrivateDirectory

private = PrivateDirectory(Path(sys.argv[1]))
sys.exit(143)
"""
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_other_users_directories_stay(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user")
    (tmp_path / "image-toolkit.0123abcd").mkdir()
    os.chown(tmp_path / "image-toolkit.0123abcd", 12345, 12345)
    remove_leftovers(tmp_path)
    assert (tmp_path / "image-toolkit.0123abcd").exists()
