"""The limit on the bytes of replies in memory."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.connections import LimitedFactory
from image_service.server.web_api.messages import ApiRequest, ApiResponse
from image_service.server.web_api.resource import ApiResource, ApiSite
from image_service.server.web_api.unsent_bytes import MAX_UNSENT_BYTES, UnsentBytes, unsent_bytes
from tests.pytwisted import ensure_deferred
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

MIB = 2**20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
REQUESTS = 120


@attrs.define(eq=False)
class Connection:
    """A connection with bytes in memory."""

    group: str
    count: int = 0

    def unsent_bytes(self) -> int:
        return self.count


class Limit:
    """A limit of 100 bytes."""

    def __init__(self) -> None:
        self.aborted: list[Connection] = []
        self.unsent = UnsentBytes(self.aborted.append, 100)

    def write(self, connection: Connection, count: int) -> None:
        connection.count += count
        self.unsent.record_write(connection)


def test_oldest_of_the_address_with_most_is_aborted() -> None:
    limit = Limit()
    other, greedy = Connection("a"), [Connection("b") for _ in range(4)]
    limit.write(other, 30)
    for connection in greedy[:3]:
        limit.write(connection, 20)
    limit.write(greedy[0], 1)
    assert limit.aborted == []
    limit.write(greedy[3], 20)  # 111 bytes: 75 stay at most
    assert limit.aborted == [greedy[1], greedy[2]]
    limit.write(other, 20)
    assert limit.aborted == [greedy[1], greedy[2]]


def test_client_that_has_taken_its_reply_is_not_aborted() -> None:
    limit = Limit()
    quick, slow = Connection("a"), Connection("b")
    limit.write(quick, 90)
    quick.count = 0
    limit.write(slow, 60)
    assert limit.aborted == []
    limit.write(quick, 30)
    limit.write(slow, 20)
    assert limit.aborted == [slow]


def test_connection_that_has_ended_counts_no_more() -> None:
    limit = Limit()
    ended, other = Connection("a"), Connection("b")
    limit.write(ended, 90)
    limit.unsent.remove(ended)
    limit.write(other, 90)
    assert limit.aborted == []


def send_requests(port: int, opened: ExitStack) -> None:
    """Send all requests on one connection, and take no reply."""
    client = opened.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.bind(("127.0.0.2", 0))
    client.connect(("127.0.0.1", port))
    client.sendall(GET * REQUESTS)


@ensure_deferred
async def test_memory_of_a_client_that_takes_no_reply_is_limited(reactor: EPollReactor) -> None:
    replies = 0

    async def respond(_: ApiRequest) -> ApiResponse:
        nonlocal replies
        replies += 1
        return ApiResponse(body=bytes(MIB))

    factory = LimitedFactory(ApiSite(ApiResource(RequestGuard(), respond), reactor, 1000), reactor, 1000)
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    number = port.getHost().port
    with ExitStack() as opened:
        await deferToThread(send_requests, number, opened)
        while replies < REQUESTS:
            await deferLater(reactor, 0.01)
        assert sum(map(unsent_bytes, reactor.getWriters())) <= MAX_UNSENT_BYTES
        assert len((await ApiClient(reactor, f"http://127.0.0.1:{number}")("GET", "/")).body) == MIB
    await port.stopListening()
    factory.abort_all()
