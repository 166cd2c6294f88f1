from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.cli.shared.output import choose_output, write_output
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.tools.iso import writing
from tests.cli.piping import COMMAND, TIMEOUT_SECONDS, run_piped
from tests.common.files.partly_absent import PartlyAbsent
from tests.core.images.building import base_file, maps_over, read
from tests.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

CONTENT = bytes(range(256)) * 4


def refuse(*_: object) -> NoReturn:
    raise OSError(errno.EXDEV, "it cannot")


def copy_nothing(*_: object) -> int:
    return 0


def copy_a_byte(source: int, target: int, _count: int, offset: int) -> int:
    return os.write(target, os.pread(source, 1, offset))


@pytest.fixture(
    params=[os.copy_file_range, refuse, copy_nothing, copy_a_byte], ids=lambda copy: copy.__name__
)
def _copying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each behavior of copy_file_range."""
    monkeypatch.setattr(os, "copy_file_range", request.param)
    monkeypatch.setattr(writing, "CHUNK_BYTES", 32)


@pytest.mark.usefixtures("_copying")
def test_output_has_the_bytes_of_the_extents(tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.mktemp("out") / "out"

    @given(st.data())
    def check(data: st.DataObject) -> None:
        with base_file(CONTENT) as file:
            extents, expected = data.draw(maps_over(file, CONTENT))
            assert expected == read(extents.extents)
            write_output(path, extents)
        assert path.read_bytes() == expected

    check()
    assert list(path.parent.iterdir()) == [path]


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda target, data: write(target, data[:300]))
    monkeypatch.setattr(os, "copy_file_range", refuse)
    with base_file(CONTENT) as file:
        write_output(tmp_path / "out", ExtentMap((Literal(CONTENT), FileExtent(file, 0, 1024))))
    assert (tmp_path / "out").read_bytes() == CONTENT * 2


def test_copies_end_at_multiples_of_the_chunk_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that share blocks would copy them otherwise."""
    asked: list[tuple[int, int]] = []

    def copy(source: int, target: int, count: int, offset: int) -> int:
        asked.append((offset, count))
        return os.write(target, os.pread(source, count, offset))

    monkeypatch.setattr(os, "copy_file_range", copy)
    monkeypatch.setattr(writing, "CHUNK_BYTES", 256)
    with base_file(CONTENT) as file:
        write_output(tmp_path / "out", ExtentMap((FileExtent(file, 200, 700),)))
    assert asked == [(200, 56), (256, 256), (512, 256), (768, 132)]


def test_truncated_base_leaves_no_output(tmp_path: Path) -> None:
    with base_file(CONTENT) as file:
        extents = ExtentMap(
            (Literal(b"x"), FileExtent(LocalFile(file.descriptor, 2000, "base.iso"), 0, 2000))
        )
        with pytest.raises(BaseImageError, match=r"base\.iso at offset 1024: the file became shorter"):
            write_output(tmp_path / "out", extents)
    assert list(tmp_path.iterdir()) == []


def test_unreadable_base_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "copy_file_range", fail)
    monkeypatch.setattr(os, "pread", fail)
    with base_file(CONTENT) as file:
        extents = ExtentMap((FileExtent(file, 5, 10),))
        with pytest.raises(BaseImageError, match=r"base\.iso at offset 5: Input/output error"):
            write_output(tmp_path / "out", extents)
    assert list(tmp_path.iterdir()) == []


def test_full_target_is_named_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with base_file(CONTENT) as file, files_of_at_most(1000):
        extents = ExtentMap((FileExtent(file, 0, 1024),))
        with pytest.raises(OSError, match="File too large") as caught:
            write_output(path, extents)
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_existing_output_requires_force(run: Run, base: Path, out: Path) -> None:
    out.write_bytes(b"mine")
    refused = run("extract", base, "kernel", "-o", out)
    assert (refused.status, refused.errors) == (
        1,
        f"image-service: {out}: exists; --force overwrites it\n",
    )
    assert out.read_bytes() == b"mine"
    assert run("extract", base, "kernel", "-o", out, "--force").status == 0
    assert out.read_bytes() == b"kernel data\n"


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_base_is_never_overwritten(run: Run, base: Path, out: Path, live_iso: bytes, link: object) -> None:
    assert callable(link)
    link(base, out)
    for name in (out, base, base.parent / ".." / "in" / "base.iso"):
        refused = run("extract", base, "kernel", "--force", "-o", name)
        assert (refused.status, refused.errors) == (1, f"image-service: {name}: is the base image itself\n")
    assert base.read_bytes() == live_iso


def test_target_of_a_symlink_is_replaced(run: Run, base: Path, out: Path) -> None:
    target = out.parent / "target"
    out.symlink_to(target)
    assert run("extract", base, "kernel", "-o", out).status == 0
    assert run("extract", base, "initrd", "-o", out, "-f").status == 0
    assert out.is_symlink()
    assert target.read_bytes() == b"initrd data\n"


def test_output_that_is_no_regular_file_is_refused(run: Run, base: Path, out: Path) -> None:
    os.mkfifo(out)
    for name in (out, out.parent):
        refused = run("extract", base, "kernel", "--force", "-o", name)
        assert (refused.status, "not a regular file" in refused.errors) == (1, True)
    assert out.is_fifo()


def test_missing_output_directory_is_named(run: Run, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "out"
    refused = run("extract", base, "kernel", "-o", path)
    assert (refused.status, refused.errors) == (1, f"image-service: {path}: No such file or directory\n")


def test_standard_output_gets_the_same_bytes(run: Run, base: Path, out: Path) -> None:
    assert run("customize", base, "--karg-append", "a", "-o", out).status == 0
    ran = run("customize", base, "--karg-append", "a", "-o", "-")
    assert (ran.status, ran.output, ran.errors) == (0, out.read_bytes(), "")


def test_terminal_as_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with base_file(CONTENT) as file, pytest.raises(OSError, match="standard output is a terminal"):
        choose_output("-", file, force=True)


@pytest.mark.parametrize("copy", [os.copy_file_range, refuse], ids=lambda copy: copy.__name__)
def test_output_fetches_bytes_that_are_not_resident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Callable[..., int]
) -> None:
    monkeypatch.setattr(os, "copy_file_range", copy)
    content = os.urandom(300_000)
    file = PartlyAbsent(tmp_path / "base.iso", content).file
    write_output(tmp_path / "out", ExtentMap((FileExtent(file, 100, 200_000),)))
    assert (tmp_path / "out").read_bytes() == content[100:200_100]
    file.close()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/../dev/stdout"])
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_each_name_of_standard_output_is_standard_output(
    base: Path, out: Path, name: str, force: tuple[str, ...]
) -> None:
    """In a pipe, and in a file, which the shell has opened."""
    words = ("extract", str(base), "kernel", *force, "-o", name)
    piped = run_piped(*words)
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, b"kernel data\n", b"")
    with out.open("wb") as file, Fork([*COMMAND, *words], stdout=file) as process:
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert out.read_bytes() == b"kernel data\n"


def test_pipe_of_another_descriptor_is_refused_with_a_hint(base: Path) -> None:
    """As a shell passes >(program)."""
    reading, writing = os.pipe()
    command = [*COMMAND, "extract", str(base), "kernel", "-f"]
    refused = subprocess.run(
        [*command, "-o", f"/dev/fd/{writing}"], pass_fds=[writing], stderr=subprocess.PIPE, check=False
    )
    os.close(reading)
    os.close(writing)
    assert refused.returncode == 1
    assert b"exists and is not a regular file; -o - writes to anything" in refused.stderr
