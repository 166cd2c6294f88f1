"""What one connection may do before the reactor turns, and what is buffered if the client does not read."""

from __future__ import annotations

import random
import socket
import tracemalloc
from typing import TYPE_CHECKING
from unittest.mock import Mock

import attrs
import pytest
from twisted.internet import tcp
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from image_service.common.files.page_cache import PageCache
from image_service.core.extents import Literal, Zeros
from image_service.server.transport.sending import tls_sender
from image_service.server.transport.sending.observer import SentBytes
from image_service.server.transport.sending.sendfile_sender import TURN_BYTES, SendfileSender
from image_service.server.transport.sending.sendfile_threads import SendfileThreads
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB
from tests.server.transport.reactor_turns import turns
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.base_file import BaseFile
    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server


class Greed:
    """Reads what a client was sent whenever the sender or the request handler is called.

    The kernel's buffer is therefore never full, and the connection never has that reason to stop.
    """

    def __init__(self) -> None:
        self.client: Client | None = None
        self.by_turn = [0]

    def read(self) -> None:
        """Read everything that is there."""
        while self.client is not None and (data := self.client.receive_some()):
            self.by_turn[-1] += len(data)

    async def read_all(self, count: int) -> None:
        """Read `count` bytes, and record how many arrived in each turn."""
        assert self.client is not None
        while sum(self.by_turn) < count:
            self.read()
            await turns(self.client.reactor, 1)
            self.by_turn.append(0)


class GreedyPageCache(PageCache):
    """The real one, which gives the client its chance to read."""

    def __init__(self, reactor: EPollReactor, greed: Greed) -> None:
        super().__init__(reactor, ThreadPool(0, 1))
        self.greed = greed

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Let the client read first."""
        self.greed.read()
        return super().resident_bytes(file, offset, length)

    def read_into(self, buffer: memoryview, file: BaseFile, offset: int) -> int | None:
        """Let the client read first."""
        self.greed.read()
        return super().read_into(buffer, file, offset)


@pytest.fixture
def greed(handler: ImageHandler) -> Greed:
    greed = Greed()
    handler.asked = lambda _: greed.read()
    return greed


@async_fixture
async def greedy(reactor: EPollReactor, serve_both: Serve, greed: Greed) -> AsyncIterator[Server]:
    yield await serve_both(page_cache=GreedyPageCache(reactor, greed))


@pytest.mark.parametrize(
    ("target", "count"),
    [("/image", 10), ("/image/0-1048576", 100), ("/fired/0-1048576", 100), ("/image/0-20000", 2000)],
)
@ensure_deferred
async def test_connection_yields_to_the_reactor_after_a_few_mib(
    greedy: Server, greed: Greed, image: Image, target: str, count: int
) -> None:
    greed.client = await greedy.client()
    other = await greedy.client()
    asking = Deferred.fromCoroutine(greed.client.send(request(target) * count))
    size = int(target.rpartition("-")[2]) if "-" in target else len(image.content)
    answered_after: list[int] = []
    other_asking = Deferred.fromCoroutine(other.ask("/image/0-9"))
    other_asking.addCallback(lambda _: answered_after.append(sum(greed.by_turn)))
    await greed.read_all(count * size)
    await asking
    await other_asking
    # What was sent in one turn may be received in the next.
    assert max(greed.by_turn) <= 2.25 * TURN_BYTES
    assert answered_after[0] <= 5 * TURN_BYTES


async def most_in_a_turn(greed: Greed, handler: ImageHandler, count: int) -> int:
    """Read until `count` requests were handled; return the largest number of one turn."""
    assert greed.client is not None
    most = answered = 0
    while len(handler.targets) < count:
        greed.read()
        await turns(greed.client.reactor, 1)
        most = max(most, len(handler.targets) - answered)
        answered = len(handler.targets)
    return most


@pytest.mark.parametrize("target", ["/image/0-9", "/fired/0-9", "/nowhere"])
@ensure_deferred
async def test_small_responses_end_a_turn_too(
    greedy: Server, greed: Greed, handler: ImageHandler, target: str
) -> None:
    greed.client = await greedy.client()
    asking = Deferred.fromCoroutine(greed.client.send(request(target) * 2000))
    most = await most_in_a_turn(greed, handler, 2000)
    await asking
    assert most <= 512


@async_fixture
async def greedy_tls(reactor: EPollReactor, serve: Serve, greed: Greed) -> AsyncIterator[Server]:
    yield await serve(secure=True, page_cache=GreedyPageCache(reactor, greed))


@ensure_deferred
async def test_requests_in_separate_tls_records_share_one_turn(greedy_tls: Server, greed: Greed) -> None:
    """Twisted delivers each record separately."""
    greed.client = client = await greedy_tls.client()
    count, size = 150, 1_000_000
    for _ in range(count):
        client.socket.send(request(f"/image/0-{size}"))
    await greed.read_all(count * size)
    assert max(greed.by_turn) <= 2.25 * tls_sender.TURN_BYTES


@ensure_deferred
async def test_small_requests_in_separate_tls_records_share_one_turn(
    greedy_tls: Server, greed: Greed, handler: ImageHandler
) -> None:
    greed.client = client = await greedy_tls.client()
    for _ in range(700):
        client.socket.send(request("/image/0-9"))
    assert await most_in_a_turn(greed, handler, 700) <= 128


@attrs.define(eq=False)
class _RoomySocket:
    """Takes everything.

    Args:
        taken: the length of each piece, and whether more was announced.
    """

    taken: list[tuple[int, bool]] = attrs.field(factory=list)

    def send(self, data: bytes, flags: int) -> int:
        """See `socket.send`."""
        self.taken.append((len(data), bool(flags & socket.MSG_MORE)))
        return len(data)


@pytest.mark.parametrize("accepted", [0, 2, 4, 5, 60_000, None])
def test_range_of_a_literal_and_its_head_are_one_system_call(
    reactor: EPollReactor, accepted: int | None
) -> None:
    """A config behind the end of an ISO is read in ranges of this size."""
    data = random.Random(7).randbytes(65536)  # noqa: S311 - any bytes
    sent: list[bytes] = []

    class Socket(_RoomySocket):
        def sendmsg(self, buffers: Sequence[bytes]) -> int:
            sent.append(b"".join(buffers)[:accepted])
            return len(sent[-1])

        def send(self, data: bytes, flags: int) -> int:
            sent.append(bytes(data))
            return super().send(data, flags)

    roomy = Socket()
    transport = Mock(spec=tcp.Server, getHandle=lambda: roomy)
    sender = SendfileSender(
        transport,
        Mock(spec=PageCache),
        Mock(),
        SentBytes(),
        threads=Mock(spec=SendfileThreads),
        clock=reactor,
    )
    sender.begin_turn()
    assert sender.send(b"head", (Literal(data),))
    assert b"".join(sent) == b"head" + data
    assert sender.body_bytes == len(data)
    assert accepted is not None or len(sent) == 1


def test_zeros_beyond_one_buffer_are_sent_in_one_reactor_turn(reactor: EPollReactor) -> None:
    """They are sent in pieces; a complete piece does not mean that the socket is full."""
    roomy = _RoomySocket()
    transport = Mock(spec=tcp.Server, getHandle=lambda: roomy)
    sender = SendfileSender(
        transport,
        Mock(spec=PageCache),
        Mock(),
        SentBytes(),
        threads=Mock(spec=SendfileThreads),
        clock=reactor,
    )
    sender.begin_turn()
    assert sender.send(b"head", (Zeros(MIB), Literal(b"end")))
    assert sum(count for count, _ in roomy.taken) == len(b"head") + MIB + len(b"end")
    assert [more for _, more in roomy.taken] == [True] * (len(roomy.taken) - 1) + [False]


@ensure_deferred
async def test_large_response_is_pushed(server: Server) -> None:
    """A pull producer would run on the global Cooperator, at a third of the speed."""
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await client.receive(10_000)
    tcp = (await server.connection_of(client))._tcp
    assert tcp.producer is not None
    assert tcp.streamingProducer


@ensure_deferred
async def test_responses_are_not_buffered_for_a_client_that_does_not_read(
    server: Server, handler: ImageHandler
) -> None:
    """Each requested separately, and smaller than what a transport buffers before it pauses its producer."""
    client = await server.client(receive_buffer=SMALL_BUFFER)
    handle = (await server.connection_of(client))._tcp.getHandle()
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)  # not autotuned any more
    for _ in range(1000):
        await client.send(request("/image/0-60000"))
        await turns(server.reactor, 3)
    assert len(handler.targets) < 500


@pytest.mark.parametrize("size", [8 * MIB, 64 * MIB])
@ensure_deferred
async def test_memory_is_independent_of_range_size_and_reader(server: Server, size: int) -> None:
    client = await server.client(receive_buffer=65536)
    await client.ask("/image/0-1000000")
    tracemalloc.start()
    await client.send(request("/image") * (size // (8 * MIB)))
    await turns(server.reactor, 50)
    _, stalled = tracemalloc.get_traced_memory()
    left = size
    while left > 0:
        left -= len(client.receive_some() or b"")
        await turns(server.reactor, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stalled < 2 * MIB
    assert peak < 4 * MIB


@ensure_deferred
async def test_many_slow_readers_are_all_served(server: Server, image: Image) -> None:
    """All at once, each from another part of the image, and a fast one among them."""
    slow = [await server.client(receive_buffer=SMALL_BUFFER) for _ in range(100)]
    starts = [index * 30_000 for index in range(len(slow))]
    for client, start in zip(slow, starts, strict=True):
        await client.send(request(f"/image/{start}-{start + 300_000}", "Connection: close"))
    quick = await server.client()
    assert (await quick.ask("/image")).body == image.content
    reading = [Deferred.fromCoroutine(_read_little_by_little(client)) for client in slow]
    for received, start in zip(reading, starts, strict=True):
        assert (await received).endswith(b"\r\n\r\n" + image.content[start : start + 300_000])


async def _read_little_by_little(client: Client) -> bytes:
    received = bytearray()
    while (data := client.receive_some(8000)) != b"":
        received += data or b""
        await turns(client.reactor, 1)
    return bytes(received)
