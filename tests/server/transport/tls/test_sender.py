"""TLS: every byte in order, however much the socket accepts; hardly anything is buffered."""

from __future__ import annotations

import os
import subprocess
from itertools import cycle
from socket import SO_SNDBUF, SOL_SOCKET
from subprocess import PIPE
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL

from image_service.server.transport.sending import tls_sender
from image_service.server.transport.sending.tcp import UNSENT_BYTES
from image_service.server.transport.sending.tls_sender import (
    PIECE_BYTES,
    SMALL_PIECE_BYTES,
    TURN_BYTES,
    TlsSender,
    TlsTransport,
)
from tests.acceptance.clients import needs_client
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request, split_answers
from tests.server.transport.image_handler import MIB
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from twisted.internet.interfaces import IPushProducer

    from image_service.server.transport.connection import Connection
    from tests.server.transport.image_handler import Image
    from tests.server.transport.server import Server

_RECORD_OVERHEAD = 22


# Bytes.


@pytest.mark.parametrize("sizes", [(1, 13, 16_384, 100_000), (16_405,), (PIECE_BYTES,)])
@ensure_deferred
async def test_each_byte_arrives_once_and_in_order(tls: Server, image: Image, sizes: tuple[int, ...]) -> None:
    client = await tls.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image/1000000-3000000", "Connection: close"))
    received = b""
    for size in cycle(sizes):
        data = client.receive_some(size)
        if data == b"":
            break
        received += data or b""
        if data is None:
            await turns(tls.reactor, 1)
    assert [answer.body for answer in split_answers(received)] == [image.content[1_000_000:3_000_000]]


@pytest.mark.parametrize(
    "size", [0, 1, 16_000, PIECE_BYTES - 100, PIECE_BYTES, 4 * PIECE_BYTES, TURN_BYTES + 1]
)
@ensure_deferred
async def test_responses_of_every_size_follow_each_other(tls: Server, image: Image, size: int) -> None:
    client = await tls.client()
    await client.send(request(f"/image/90-{90 + size}") * 5)
    for _ in range(5):
        assert (await client.answer()).body == image.content[90 : 90 + size]


@ensure_deferred
async def test_counted_bytes_equal_the_sent_bytes(tls: Server) -> None:
    client = await tls.client()
    answer = await client.ask("/image/0-1000000")
    assert len(answer.body) == 1_000_000
    assert tls.lines[0]["bytes"] == 1_000_000
    assert 1_000_000 < tls.recorded.sent.tls < 1_001_000


# The socket's buffer.


@ensure_deferred
async def test_response_that_fits_is_sent_in_the_turn_of_its_request(tls: Server) -> None:
    client = await tls.client()
    connection = await tls.connection_of(client)
    assert (await client.ask("/image/0-9")).status == 200
    calls: list[str] = []
    tcp = connection._tcp._tcp
    tcp.startWriting = lambda: calls.append("startWriting")
    assert len((await client.ask("/image/0-65536")).body) == 65_536
    assert calls == []
    del tcp.startWriting


@ensure_deferred
async def test_nothing_is_buffered_for_a_client_that_does_not_read(tls: Server) -> None:
    client = await tls.client(receive_buffer=SMALL_BUFFER)
    connection = await tls.connection_of(client)
    await client.send(request("/image") * 8)
    for _ in range(20):
        await turns(tls.reactor)
        client.receive_some(30_000)  # so that the socket is full more than once
    assert kept_bytes(connection) == 0
    with pytest.raises(SSL.WantReadError):
        connection.transport.getHandle().bio_read(1)
    assert tls.recorded.sent.tls < UNSENT_BYTES + MIB


def kept_bytes(connection: Connection) -> int:
    """Return the bytes in the transport's own buffer."""
    tcp = connection._tcp._tcp
    count: int = len(tcp.dataBuffer) - tcp.offset + tcp._tempDataLen
    return count


@pytest.mark.parametrize("size", [20_000, 60_000, 1_000_000])
@ensure_deferred
async def test_rest_of_a_piece_is_buffered_if_the_kernel_accepts_less(
    tls: Server, image: Image, size: int
) -> None:
    """The response ends only after that is sent."""
    client = await tls.client(receive_buffer=SMALL_BUFFER)
    connection = await tls.connection_of(client)
    connection._tcp.getHandle().setsockopt(SOL_SOCKET, SO_SNDBUF, SMALL_BUFFER)
    await client.send(request(f"/image/0-{size}", "Connection: close"))
    await until(tls.reactor, lambda: kept_bytes(connection))
    await turns(tls.reactor)
    assert kept_bytes(connection) < PIECE_BYTES + 5 * _RECORD_OVERHEAD
    assert tls.lines == []
    (answer,) = await client.answers()
    assert answer.body == image.content[:size]
    assert tls.lines[0]["ended"] == "complete"


@ensure_deferred
async def test_pieces_are_small_with_many_connections(
    tls: Server, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL keeps a buffer of the largest piece for each connection."""
    monkeypatch.setattr(tls_sender, "MANY_CONNECTIONS", 1)
    pieces: list[int] = []
    gather = TlsSender._gather

    def note(sender: TlsSender, limit: int) -> int:
        pieces.append(gather(sender, limit))
        return pieces[-1]

    monkeypatch.setattr(TlsSender, "_gather", note)
    alone = await tls.client()
    assert (await alone.ask("/image/0-500000")).body == image.content[:500_000]
    assert max(pieces) == PIECE_BYTES
    pieces.clear()
    other = await tls.client()
    assert (await other.ask("/image/0-500000")).body == image.content[:500_000]
    assert max(pieces) == SMALL_PIECE_BYTES


@ensure_deferred
async def test_input_may_be_paused_while_nothing_is_sent(tls: Server) -> None:
    """Pausing input acts on the transport below TLS, not on `TlsTransport`."""
    client = await tls.client()
    connection = await tls.connection_of(client)
    connection.transport.pauseProducing()
    await client.send(request("/live"))
    assert await client.is_silent()
    connection.transport.resumeProducing()
    assert (await client.answer()).status == 200


# What TLS itself has to say.


@ensure_deferred
async def test_keys_are_updated_within_a_response(tls: Server, image: Image) -> None:
    """Each update requires one of the server, which must stay in order with the records."""
    command = [needs_client("openssl"), "s_client", "-connect", f"127.0.0.1:{tls.number}", "-tls1_3"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0) as process:  # noqa: ASYNC220 - read below, turn by turn
        assert process.stdin
        assert process.stdout
        assert process.stderr
        stdin, stdout = process.stdin, process.stdout.fileno()
        os.set_blocking(stdout, False)
        stdin.write(request("/image", "Connection: close"))
        received = bytearray()
        updated_at = [0]

        def has_ended() -> bool:
            try:
                data = os.read(stdout, 20_000)
            except BlockingIOError:
                return False
            received.extend(data)
            if updated_at[-1] + 200_000 < len(received) < 7_000_000:
                updated_at.append(len(received))
                stdin.write(b"K\n")  # its command for: update your key, and have the server update its own
            return not data

        await until(tls.reactor, has_ended)
        # Of some 30 commands s_client takes those as one that it reads at once.
        assert process.stderr.read().count(b"KEYUPDATE") > 2
    assert image.content in bytes(received)


# What the transport makes of a socket.


@attrs.define
class FullSocket:
    """Accepts as much as planned."""

    plan: list[int]
    taken: bytearray = attrs.field(factory=bytearray)

    def send(self, data: bytes) -> int:
        count = min(self.plan.pop(0) if self.plan else 0, len(data))
        if not count:
            raise BlockingIOError
        self.taken += data[:count]
        return count

    def setsockopt(self, *_: int) -> None:
        pass


@attrs.define(eq=False)
class Transport:
    """What `TlsTransport` uses of a TCP transport; it sends what it holds when the test calls `drain`."""

    socket: FullSocket
    connected: bool = True
    held: bytearray = attrs.field(factory=bytearray)
    resumes: IPushProducer | None = None
    producerPaused: bool = False

    def getHandle(self) -> FullSocket:
        return self.socket

    def write(self, data: bytes) -> None:
        self.held += data

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:  # noqa: FBT001 - Twisted's
        assert streaming
        assert self.resumes is None
        self.resumes = producer

    def unregisterProducer(self) -> None:
        self.resumes = None

    def startWriting(self) -> None:
        pass

    def drain(self) -> None:
        self.socket.taken += self.held
        self.held.clear()
        if self.resumes is not None and self.producerPaused:
            self.producerPaused = False
            self.resumes.resumeProducing()


@attrs.define
class Resumed:
    """Who sends."""

    transport: TlsTransport

    def resumeProducing(self) -> None:
        self.transport.unblock()


@given(st.lists(st.one_of(st.binary(max_size=40), st.none())), st.lists(st.integers(0, 30)))
def test_records_are_never_reordered(writes: list[bytes | None], plan: list[int]) -> None:
    """None: the socket takes what the transport holds."""
    tcp = Transport(FullSocket(plan))
    transport = TlsTransport(tcp)  # type: ignore[arg-type] # what it uses of one
    transport.sender = Resumed(transport)  # type: ignore[assignment] # same
    for data in writes:
        if data is None:
            tcp.drain()
        elif data:
            transport.write(data)
        assert transport.is_blocked >= bool(tcp.held)
    tcp.drain()
    assert bytes(tcp.socket.taken) == b"".join(filter(None, writes))
    assert not transport.is_blocked


def test_nothing_is_written_to_a_closed_connection() -> None:
    tcp = Transport(FullSocket([10]), connected=False)
    TlsTransport(tcp).write(b"alert")  # type: ignore[arg-type] # what it uses of one
    assert not tcp.socket.taken
    assert not tcp.held
