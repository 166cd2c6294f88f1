"""Fast clients of large images: a thread sends, until the kernel has to wait too long for the client."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from array import array
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent
from image_service.server.transport.sending import sendfile_sender, sendfile_threads
from image_service.server.transport.sending.sendfile_sender import TURN_BYTES
from image_service.server.transport.sending.tcp import accepted_bytes, bind
from tests.common.files.partly_absent import PartlyAbsent
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, Image
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER, open_descriptors, serving
from tests.server.transport.slow_disk import SlowDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import ImageHandler
    from tests.server.transport.server import Server

SIZE = 48 * MIB


@attrs.define(eq=False)
class Sent:
    """What was sent by sendfile.

    Args:
        here: bytes of each call in the reactor's thread.
        elsewhere: same, in a sendfile thread.
        waiting: calls in sendfile threads that have not returned.
        calls: all calls in their order: whether it was in a sendfile thread, and whether it sent everything.
    """

    here: list[int] = attrs.field(factory=list)
    elsewhere: list[int] = attrs.field(factory=list)
    waiting: int = 0
    calls: list[tuple[bool, bool]] = attrs.field(factory=list)


@pytest.fixture(scope="module")
def content() -> bytes:
    """Every eight bytes are different."""
    return array("Q", range(SIZE // 8)).tobytes()


@pytest.fixture
def image(tmp_path: Path, content: bytes) -> Iterator[Image]:
    path = tmp_path / "large"
    path.write_bytes(content)
    file = LocalFile(os.open(path, os.O_RDONLY), SIZE, str(path))
    yield Image(ExtentMap((FileExtent(file, 0, SIZE),)), content, file)
    os.close(file.descriptor)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    recorded = Sent()
    reactor_thread, sendfile = threading.get_ident(), os.sendfile

    def send(out: int, descriptor: int, offset: int, count: int) -> int:
        in_thread = threading.get_ident() != reactor_thread
        recorded.waiting += in_thread
        try:
            sent = sendfile(out, descriptor, offset, count)
        finally:
            recorded.waiting -= in_thread
        (recorded.elsewhere if in_thread else recorded.here).append(sent)
        recorded.calls.append((in_thread, sent == count))
        return sent

    monkeypatch.setattr(os, "sendfile", send)
    return recorded


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads wait for a client that reads in time, however busy the machine is."""
    monkeypatch.setattr(sendfile_threads, "_SEND_TIMEOUT", struct.pack("@ll", 900, 0))


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of unsent bytes that senders set, in their order."""
    limits: list[int] = []
    monkeypatch.setattr(sendfile_sender, "set_unsent_limit", lambda _handle, limit: limits.append(limit))
    return limits


@async_fixture
async def server(serve: Serve, sent: Sent) -> AsyncIterator[Server]:
    """Ends after its sendfile threads."""
    running = await serve()
    yield running
    await until(running.reactor, lambda: not sent.waiting)


async def stalled_in_thread(server: Server, sent: Sent) -> Client:
    """Return a client that has read a part and now stops, so that a sendfile thread waits for it."""
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, partial(_thread_waits, client, sent))
    return client


def _thread_waits(client: Client, sent: Sent) -> bool:
    if not sent.waiting:
        client._received += client.receive_some() or b""
    return bool(sent.waiting)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("piece", [sendfile_threads.MAX_BYTES, 5 * MIB])
@ensure_deferred
async def test_fast_client_is_served_mostly_by_a_thread(
    server: Server, sent: Sent, image: Image, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(sendfile_sender, "MAX_BYTES", piece)
    client = await server.client()
    assert (await client.ask("/image")).body == image.content
    await until(server.reactor, lambda: server.lines)
    assert sum(sent.elsewhere) > SIZE // 2
    assert max(sent.elsewhere) <= piece
    following = [pair for pair in pairwise(sent.calls[:-1]) if pair[0] == (True, True)]
    assert all(after[0] for _, after in following), (
        "the reactor sends nothing between one thread and the next"
    )
    assert sum(sent.here) + sum(sent.elsewhere) == server.recorded.sent.sendfile == SIZE
    assert server.lines[0]["bytes"] == SIZE
    assert not os.get_blocking((await server.connection_of(client)).transport.getHandle().fileno())


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_one_thread_follows_another(
    server: Server, sent: Sent, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the reactor had to wait for the client."""
    monkeypatch.setattr(sendfile_sender, "MAX_BYTES", 20 * MIB)
    client = await stalled_in_thread(server, sent)
    server.clock.advance(1)
    assert (await client.answer()).body == image.content
    await until(server.reactor, lambda: server.lines)
    assert sent.elsewhere == [20 * MIB, 20 * MIB]


@ensure_deferred
async def test_small_responses_use_no_thread(server: Server, sent: Sent, image: Image) -> None:
    client = await server.client()
    for _ in range(12):
        assert (await client.ask(f"/image/0-{4 * MIB - 1}")).body == image.content[: 4 * MIB - 1]
    assert sent.elsewhere == []


@ensure_deferred
async def test_single_fast_turn_does_not_start_a_thread(
    reactor: EPollReactor, handler: ImageHandler, sent: Sent, windows: list[int]
) -> None:
    """The client has taken the small window of an unknown client; the reactor fills a large one."""
    async with serving(reactor, handler, listener=bind(0)) as server:
        client = await server.client(receive_buffer=65536)
        await client.send(request("/image"))
        while len(sent.here) < 2 and not sent.waiting:
            client.receive_some()
            await turns(reactor, 1)
        assert windows[0] == TURN_BYTES
        assert not sent.elsewhere
        assert not sent.waiting


@ensure_deferred
async def test_thread_of_a_stalled_client_is_freed_soon(server: Server, sent: Sent, image: Image) -> None:
    """The rest follows when it reads again."""
    client = await stalled_in_thread(server, sent)
    await until(server.reactor, lambda: not sent.waiting)
    assert (await client.answer()).body == image.content
    await until(server.reactor, lambda: server.lines)
    assert sum(sent.here) + sum(sent.elsewhere) == SIZE


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_response_does_not_wait_for_a_thread(server: Server, sent: Sent) -> None:
    client = await stalled_in_thread(server, sent)
    other = await server.client()
    for _ in range(20):
        assert (await other.ask("/live")).status == 200
    assert sent.waiting
    client.reset()


@ensure_deferred
async def test_request_received_meanwhile_is_answered_next(server: Server, sent: Sent, image: Image) -> None:
    client = await stalled_in_thread(server, sent)
    await client.send(request("/image/8-24") + request("/live"))
    assert (await client.answer()).body == image.content
    assert (await client.answer()).body == image.content[8:24]
    assert (await client.answer()).body == b"well\n"


@ensure_deferred
async def test_response_is_sent_without_a_thread_if_none_is_free(
    server: Server, sent: Sent, image: Image
) -> None:
    clients = [await server.client() for _ in range(6)]
    asking = [Deferred.fromCoroutine(client.ask("/image")) for client in clients]
    for answer in asking:
        assert (await answer).body == image.content
    await until(server.reactor, lambda: len(server.lines) == len(clients))
    assert sum(sent.here) + sum(sent.elsewhere) == len(clients) * SIZE


@ensure_deferred
async def test_pool_size_limits_concurrent_sends(
    plain: Server, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = threading.Event()
    monkeypatch.setattr(os, "sendfile", lambda *_: resume.wait() and 7)
    handle = (await plain.connection_of(await plain.client())).transport.getHandle()
    whole = FileExtent(image.file, 0, SIZE)
    one, other, none = (plain.factory.context.sendfile_threads.send(handle, whole) for _ in range(3))
    assert none is None
    resume.set()
    assert one is not None
    assert other is not None
    assert await one == await other == 7
    again = plain.factory.context.sendfile_threads.send(handle, whole)
    assert again is not None
    assert await again == 7


@ensure_deferred
async def test_disconnect_leaves_no_thread_behind(server: Server, sent: Sent) -> None:
    before = open_descriptors(server.number)
    client = await stalled_in_thread(server, sent)
    client.reset()
    await until(server.reactor, lambda: server.lines)
    await until(server.reactor, lambda: open_descriptors(server.number) == before)
    assert server.lines[0]["ended"] == "the client is gone"
    assert server.recorded.aborts == ["client-gone"]


@ensure_deferred
async def test_aborted_send_ends_soon_and_is_counted(server: Server, sent: Sent, image: Image) -> None:
    """A shutdown does not wait for the kernel. A thread that seems to wait for the disk is ended by a FIN."""
    client = await stalled_in_thread(server, sent)
    handle = (await server.connection_of(client)).transport.getHandle()
    await until(server.reactor, lambda: accepted_bytes(handle) > sum(sent.here))
    server.factory.abort()
    await until(server.reactor, lambda: server.lines and not sent.waiting)
    _, _, body = (await client.read_to_end()).partition(b"\r\n\r\n")
    assert len(body) < len(image.content)
    assert image.content.startswith(body)
    (line,) = server.lines
    assert line["ended"] == "the service is shutting down"
    assert sum(sent.here) < line["bytes"] <= sum(sent.here) + sum(sent.elsewhere)
    assert line["bytes"] == server.recorded.sent.sendfile


@ensure_deferred
async def test_stalled_client_of_a_thread_is_aborted(server: Server, sent: Sent) -> None:
    client = await stalled_in_thread(server, sent)
    while not server.recorded.aborts:  # on a busy machine, the thread may still fill the socket
        await server.advance(2 * server.factory.context.limits.stall_seconds)
    await client.read_until_abort()
    assert server.recorded.aborts == ["no-progress"]


@ensure_deferred
async def test_shrinking_file_aborts_the_response(server: Server, sent: Sent, image: Image) -> None:
    client = await stalled_in_thread(server, sent)
    os.truncate(image.file.path, SIZE - 1)
    await client.read_until_abort()
    (line,) = server.lines
    assert line["ended"] == "the file is shorter than it was"


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_reactor_sends_if_no_thread_starts(
    server: Server, sent: Sent, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like in a container with too few processes."""

    def no_thread(*_args: object, **_options: object) -> None:
        raise RuntimeError("can't start new thread")

    client = await server.client()
    with monkeypatch.context() as patch:
        patch.setattr(server.factory.context.sendfile_threads._pool, "threadFactory", no_thread)
        assert (await client.ask("/image")).body == image.content
    assert sent.elsewhere == []
    assert (await client.ask("/image")).body == image.content
    await until(server.reactor, lambda: len(server.lines) == 2)
    assert sum(sent.elsewhere) > SIZE // 2


@ensure_deferred
async def test_reactor_sends_if_no_descriptor_is_left(
    server: Server, sent: Sent, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket.socket, "dup", no_descriptor)
    client = await server.client()
    assert (await client.ask("/image")).body == image.content
    assert sent.elsewhere == []


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_threads_work_if_setpriority_is_refused(
    server: Server, sent: Sent, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may not lower its niceness."""

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    client = await server.client()
    assert (await client.ask("/image")).body == image.content
    await until(server.reactor, lambda: server.lines)
    assert sum(sent.elsewhere) > SIZE // 2


@ensure_deferred
async def test_files_with_a_residency_of_their_own_are_not_sent_in_threads(
    server: Server, handler: ImageHandler, sent: Sent, image: Image, tmp_path: Path
) -> None:
    absent = PartlyAbsent(tmp_path / "absent", image.content).file
    handler.image = attrs.evolve(image, extents=ExtentMap((FileExtent(absent, 0, SIZE),)))
    client = await server.client()
    assert (await client.ask("/image")).body == image.content
    assert sent.elsewhere == []
    absent.close()


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_reading_from_a_blocking_socket_never_waits(server: Server, sent: Sent) -> None:
    """Epoll may report input where there is none if the kernel is short of memory."""
    client = await stalled_in_thread(server, sent)
    handle = (await server.connection_of(client)).transport.getHandle()
    assert os.get_blocking(handle.fileno())
    with pytest.raises(BlockingIOError):
        handle.recv(1)
    client.reset()


@ensure_deferred
async def test_abort_while_waiting_for_the_disk_takes_effect_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread returns when the disk responds."""
    here, sendfile, disk = threading.get_ident(), os.sendfile, threading.Event()
    waiting = threading.Event()

    def send(out: int, descriptor: int, offset: int, count: int) -> int:
        if threading.get_ident() != here:
            waiting.set()
            disk.wait()
        return sendfile(out, descriptor, offset, count)

    monkeypatch.setattr(os, "sendfile", send)
    client = await server.client()
    await client.send(request("/image"))
    received = b""
    while not waiting.is_set():
        received += client.receive_some() or b""
        await turns(server.reactor, 1)
    server.factory.abort()
    received += await client.read_until_close()
    disk.set()
    await server.wait_until_closed()
    assert len(received) < SIZE


@pytest.mark.usefixtures("patient")
@ensure_deferred
async def test_thread_waits_for_the_disk(
    reactor: EPollReactor, handler: ImageHandler, sent: Sent, image: Image
) -> None:
    """The disk has delivered only what was requested before the client was known to be fast."""
    disk = SlowDisk(reactor)
    async with serving(reactor, handler, page_cache=disk, listener=bind(0)) as server:
        client = await server.client(receive_buffer=SMALL_BUFFER)
        asking = Deferred.fromCoroutine(client.ask("/image"))
        while not asking.called:
            if disk.loads and not sent.elsewhere:
                disk.answer()
            await turns(reactor, 1)
        assert (await asking).body == image.content
        assert disk.loads == []
    assert sum(sent.elsewhere) > SIZE // 2


@ensure_deferred
async def test_disk_error_in_a_thread_aborts_the_response(
    server: Server, handler: ImageHandler, image: Image, tmp_path: Path
) -> None:
    """A descriptor of which every read fails, in place of a broken disk."""
    directory = LocalFile(os.open(tmp_path, os.O_RDONLY), SIZE, str(tmp_path))
    half = SIZE // 4
    extents = ExtentMap((FileExtent(image.file, 0, half), FileExtent(directory, 0, SIZE - half)))
    handler.image = Image(extents, image.content, directory)
    client = await server.client()
    await client.send(request("/image"))
    _, _, body = (await client.read_until_abort()).partition(b"\r\n\r\n")
    assert body == image.content[:half]
    assert server.recorded.sent.sendfile == half
    assert server.recorded.aborts == ["disk-failed"]
    os.close(directory.descriptor)
