"""Disks that are slow or fail, and files that shrink."""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.common.files.cachestat import is_cached
from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import FILE_BYTES, MIB, Image, ImageHandler, make_image
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER
from tests.server.transport.slow_disk import SlowDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.base_file import BaseFile
    from tests.server.transport.conftest import Serve
    from tests.server.transport.server import Server


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """An image whose file the test may modify."""
    made = make_image(tmp_path)
    yield made
    os.close(made.file.descriptor)


def cold_file(path: Path, content: bytes) -> BaseFile:
    """A file that is not in the page cache, if the file system supports that."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return LocalFile(descriptor, len(content), str(path))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Image]:
    content = random.Random(5).randbytes(3 * MIB)  # noqa: S311 - any bytes will do
    file = cold_file(tmp_path / "cold", content)
    if is_cached(file.descriptor, 0, MIB) is not False:
        pytest.skip("this file system keeps everything in memory, or the kernel cannot tell")
    yield Image(ExtentMap((FileExtent(file, 0, file.size),)), content, file)
    os.close(file.descriptor)


# Files that hold less than they did.


@ensure_deferred
async def test_shrinking_file_aborts_the_response(server: Server, image: Image) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await client.receive(10_000)
    os.truncate(image.file.path, FILE_BYTES - 1)
    assert len(await client.read_until_abort()) < len(image.content)
    (line,) = server.lines
    assert line["ended"] == "the file is shorter than it was"
    assert server.recorded.aborts == ["short-read"]
    assert line["bytes"] < len(image.content)


@pytest.mark.parametrize("size", [0, 4_000_000, 4_000_999])
@pytest.mark.parametrize("target", ["/image/4000000-4001000", "/image/4000000-4100000"])
@ensure_deferred
async def test_shrunk_file_never_gives_a_response_that_looks_complete(
    server: Server, image: Image, size: int, target: str
) -> None:
    client = await server.client()
    os.truncate(image.file.path, size)
    await client.send(request(target) * 2)
    _, _, body = (await client.read_until_abort()).partition(b"\r\n\r\n")
    assert len(body) < 1000
    assert [line["ended"] for line in server.lines] == ["the file is shorter than it was"]


# Disks that fail.


@pytest.mark.parametrize("size", [1000, 1_000_000])
@ensure_deferred
async def test_disk_error_aborts_the_response(
    server: Server, handler: ImageHandler, tmp_path: Path, size: int
) -> None:
    """A descriptor of which every read fails, in place of a broken disk."""
    directory = LocalFile(os.open(tmp_path, os.O_RDONLY), size, str(tmp_path))
    handler.image = Image(ExtentMap((FileExtent(directory, 0, size),)), b"", directory)
    client = await server.client()
    await client.send(request("/image") * 2)
    _, _, body = (await client.read_until_abort()).partition(b"\r\n\r\n")
    assert body == b""
    (line,) = server.lines
    assert line["ended"].startswith("the disk failed: ")
    os.close(directory.descriptor)


@ensure_deferred
async def test_late_disk_error_aborts_the_response(serve_both: Serve, reactor: EPollReactor) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    disk.loads.pop().done.errback(OSError(errno.EIO, os.strerror(errno.EIO)))
    await client.read_until_abort()
    (line,) = server.lines
    assert line["ended"] == "the disk failed: [Errno 5] Input/output error"


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH])
@pytest.mark.parametrize("gone", [True, False])
@ensure_deferred
async def test_network_errors_are_distinguished_from_disk_errors(
    plain: Server, monkeypatch: pytest.MonkeyPatch, code: int, *, gone: bool
) -> None:
    """The error numbers may be equal; after a network error the connection has ended."""
    client = await plain.client()

    def fail(*_: int) -> int:
        if gone:
            client.reset()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", fail)
    await client.send(request("/image"))
    await until(plain.reactor, lambda: plain.lines)
    assert plain.recorded.aborts == ["client-gone" if gone else "disk-failed"]


# Disks that are slow.


@pytest.mark.parametrize("target", ["/image", "/image/0-1000", "/image/90-130"])
@ensure_deferred
async def test_slow_disk_delays_no_other_connection(
    serve_both: Serve, reactor: EPollReactor, image: Image, target: str
) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    waiting, other = await server.client(), await server.client()
    await waiting.send(request(target, "Connection: close"))
    answers = Deferred.fromCoroutine(waiting.answers())
    await until(reactor, lambda: disk.loads)
    while not answers.called:
        assert (await other.ask("/live")).status == 200
        if disk.loads:
            (load,) = disk.loads  # one at a time, and none too large
            assert load.length <= MIB
            disk.answer()
    (received,) = await answers
    assert received.body == image.content[slice(*_part(target))]


def _part(target: str) -> tuple[int | None, int | None]:
    start, dash, stop = target.removeprefix("/image").strip("/").partition("-")
    return (int(start), int(stop)) if dash else (None, None)


@ensure_deferred
async def test_resident_bytes_are_sent_without_waiting(
    serve_both: Serve, reactor: EPollReactor, image: Image
) -> None:
    """The disk has delivered once, and delivers again after others have read that."""
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    waiting, other = await server.client(), await server.client()
    await waiting.send(request("/image", "Connection: close"))
    answers = Deferred.fromCoroutine(waiting.answers())
    await until(reactor, lambda: disk.loads)
    present = disk.answer()
    await until(reactor, lambda: disk.loads)
    for start in range(0, present - 40_000, 40_000):
        answer = await other.ask(f"/image/{start}-{start + 40_000}")
        assert answer.body == image.content[start : start + 40_000]
    assert len(disk.loads) == 1
    while not answers.called:
        if disk.loads:
            disk.answer()
        await turns(reactor, 1)
    (received,) = await answers
    assert received.body == image.content


@ensure_deferred
async def test_bytes_of_unknown_residency_are_read_in_threads(
    serve_both: Serve, handler: ImageHandler, cold: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like FUSE and NFS: nothing is ever reported as resident, and prefetched bytes are sent all the same."""
    here, preadv = threading.get_ident(), os.preadv

    def refuse(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        assert threading.get_ident() != here
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    handler.image = cold
    server = await serve_both()
    client = await server.client()
    assert (await client.ask("/image")).body == cold.content
    assert (await client.ask("/image/1000-3000")).body == cold.content[1000:3000]
    assert (await client.ask("/image/1000-300000")).body == cold.content[1000:300_000]


@ensure_deferred
async def test_reactor_never_waits_for_a_cold_file(
    serve_both: Serve, handler: ImageHandler, cold: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads either must not wait (RWF_NOWAIT), or run in another thread."""
    reads: list[tuple[bool, int]] = []
    here, preadv = threading.get_ident(), os.preadv

    def spy(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        reads.append((threading.get_ident() == here, flags))
        return preadv(descriptor, buffers, offset, flags)

    def send(out: int, descriptor: int, offset: int, count: int) -> int:
        assert is_cached(descriptor, offset, count)
        return sendfile(out, descriptor, offset, count)

    sendfile = os.sendfile
    monkeypatch.setattr(os, "preadv", spy)
    monkeypatch.setattr(os, "sendfile", send)
    handler.image = cold
    server = await serve_both()
    client = await server.client()
    assert (await client.ask("/image")).body == cold.content
    assert (True, os.RWF_NOWAIT) in reads
    assert (True, 0) not in reads
