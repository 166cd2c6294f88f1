"""Connections on a real listener, plain or TLS, with a clock that the test advances."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from contextlib import asynccontextmanager
from fcntl import ioctl
from functools import cache, partial
from pathlib import Path
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any

import attrs
import trustme
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.python.threadpool import ThreadPool

from image_service.common.files.page_cache import PageCache
from image_service.server.transport.admission.connection_limit import ConnectionLimit
from image_service.server.transport.admission.counts import Counts
from image_service.server.transport.admission.slot_pool import LocalSlotPool
from image_service.server.transport.admission.slots import SLOT_TIMEOUT_SECONDS, Slots
from image_service.server.transport.context import ConnectionContext
from image_service.server.transport.exchanges.access_log import AccessLog
from image_service.server.transport.exchanges.failures import RecentFailures
from image_service.server.transport.exchanges.handshake_failures import HandshakeFailures
from image_service.server.transport.factory import ConnectionFactory
from image_service.server.transport.sending.sendfile_threads import SendfileThreads
from image_service.server.transport.tls.certificate import ServerCertificate
from image_service.server.transport.tls_protocol import TlsFactory
from image_service.settings.network import LimitSettings
from tests.server.transport.client import Client
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.recording_observer import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort

    from image_service.server.http.forwarded import Network
    from image_service.server.transport.connection import Connection
    from image_service.server.transport.exchanges.exchange import RequestHandler

DEFAULTS = LimitSettings()
SMALL_BUFFER = 4096
"""A receive buffer so small that the kernel hides almost nothing of a client's slowness."""


@cache
def _certificate() -> tuple[ssl.SSLContext, ServerCertificate]:
    """Return the clients' context and the servers' certificate."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    with authority.issue_cert("localhost").private_key_and_cert_chain_pem.tempfile() as path:
        return context, ServerCertificate(Path(path), Path(path), Clock())


@attrs.define(eq=False)
class Server:
    """A listener with what its connections share.

    Args:
        reactor: the one that runs: its sockets and threads are real.
        factory: makes the connections.
        port: where it listens.
        lines: the access log's events.
        recorded: what the observer has recorded.
    """

    reactor: EPollReactor
    factory: ConnectionFactory
    port: IListeningPort
    clock: Clock
    lines: list[dict[str, Any]]
    recorded: RecordingObserver
    _clients: list[Client] = attrs.field(factory=list, init=False)

    number: int = attrs.field(init=False)
    """The TCP port's number, also after it was closed."""

    @number.default
    def _get_number(self) -> int:
        number: int = self.port.getHost().port  # type: ignore[attr-defined] # IAddress says nothing
        return number

    def connect(self, *, receive_buffer: int | None = None, host: str = "127.0.0.1") -> Client:
        """Connect, without TLS.

        Args:
            receive_buffer: bytes that the kernel may hold for the client, before its own doubling.
            host: to connect to.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((host, self.number))
        connection.setblocking(False)  # noqa: FBT003 - its signature
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(self.reactor, connection)
        self._clients.append(client)
        return client

    async def client(self, *, receive_buffer: int | None = None) -> Client:
        """Connect, with TLS if the server has it, and wait until the server has accepted."""
        client = self.connect(receive_buffer=receive_buffer)
        await self.connection_of(client)
        if self.factory.secure:
            await self.secure(client, _certificate()[0])
        return client

    async def secure(
        self, client: Client, context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> None:
        """Establish TLS on a connection.

        Args:
            client: connected.
            context: the client's.
            session: to be resumed.
        """
        client.socket = context.wrap_socket(
            client.socket,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
            server_hostname="localhost",
            session=session,
        )
        await client.handshake()
        await turns(self.reactor)

    async def connection_of(self, client: Client) -> Connection:
        """The server's end of a client's connection."""

        def find() -> list[Connection]:
            return [one for one in self.factory.connections if one.transport.getPeer().port == client.port]

        (connection,) = await until(self.reactor, find)
        return connection

    async def advance(self, seconds: float) -> None:
        """Advance the server's clock, by at most a second at a time, with reactor turns in between."""
        while seconds > 0:
            self.clock.advance(min(1, seconds))
            seconds -= 1
            await turns(self.reactor, 2)
        await turns(self.reactor)

    async def advance_until_closed(self, seconds: float) -> None:
        """Advance the clock until no connection is left.

        The client's TCP acknowledges some real milliseconds late, during which the clock may advance by
        minutes.
        """
        limit = self.clock.seconds() + 10 * seconds
        while self.factory.connections and self.clock.seconds() < limit:
            await self.advance(1)
        await self.wait_until_closed()

    async def wait_until_delivered(self, client: Client) -> None:
        """Wait until the client's TCP has acknowledged everything."""
        await turns(self.reactor)
        handle = (await self.connection_of(client))._tcp.getHandle()
        await until(self.reactor, lambda: ioctl(handle, TIOCOUTQ, bytes(4)) == bytes(4))

    async def wait_until_closed(self) -> None:
        """Wait until the server has no connection left."""
        await until(self.reactor, lambda: not self.factory.connections)

    async def end(self) -> None:
        """Stop listening, reset every client, and check that nothing of them is left."""
        await maybeDeferred(self.port.stopListening)
        for client in self._clients:
            if client.socket.fileno() >= 0:
                client.reset()
        await self.wait_until_closed()
        self.factory.context.handshake_failures.close()
        assert self.clock.getDelayedCalls() == []
        assert (self.factory.context.slots.acquired, self.factory.context.slots.waiting) == (0, 0)
        threads = self.factory.context.sendfile_threads
        await until(self.reactor, lambda: threads.free == threads.limit)


def open_descriptors(port: int) -> int:
    """Return how many sockets at a port and how many regular files are open.

    Other sockets come and go: what an earlier test has left runs on in the reactor.
    """
    return sum(map(partial(_is_counted, port), map(int, os.listdir("/proc/self/fd"))))  # noqa: PTH208 - names


def _is_counted(port: int, descriptor: int) -> bool:
    try:
        copy = os.dup(descriptor)
    except OSError:  # that of the listing
        return False
    if not stat.S_ISSOCK(os.fstat(copy).st_mode):
        is_file = stat.S_ISREG(os.fstat(copy).st_mode)
        os.close(copy)
        return is_file
    with socket.socket(fileno=copy) as one:
        return bool(one.getsockname()[1:2] == (port,))


@asynccontextmanager
async def serving(  # noqa: PLR0913 - each has its default
    reactor: EPollReactor,
    handler: RequestHandler,
    *,
    secure: bool = False,
    limits: LimitSettings = DEFAULTS,
    downloads: int = 400,
    page_cache: PageCache | None = None,
    each_range: bool = False,
    listener: socket.socket | None = None,
    certificate: ServerCertificate | None = None,
    proxies: Collection[Network] = (),
) -> AsyncIterator[Server]:
    """Run a server, and check that it leaves no descriptor, timer or connection behind."""
    pool, sendfile_pool = ThreadPool(0, 2, "disk"), ThreadPool(0, 2, "sendfile")
    pool.start()
    sendfile_pool.start()
    clock = Clock()
    lines: list[dict[str, Any]] = []
    log = AccessLog(clock, each_range, lambda event: lines.append(event["log_fields"]))  # type: ignore[arg-type] # a function is an observer
    recorded, failures = RecordingObserver(), RecentFailures()
    counts = Counts()
    context = ConnectionContext(
        clock=clock,
        handler=handler,
        page_cache=page_cache or PageCache(reactor, pool),
        sendfile_threads=SendfileThreads(reactor, sendfile_pool),
        access_log=log,
        limits=limits,
        slots=Slots(
            LocalSlotPool(downloads, counts),
            400,
            SLOT_TIMEOUT_SECONDS,
            min_rate=limits.min_download_rate,
            clock=clock,
            observer=recorded,
        ),
        connection_limit=ConnectionLimit(limits, proxies, counts, clock, recorded),
        observer=recorded,
        handshake_failures=HandshakeFailures(clock, recorded, failures),
        failures=failures,
        proxies=proxies,
    )
    factory = ConnectionFactory(context, secure=secure)
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)  # noqa: FBT003 - its signature
    shown = certificate or _certificate()[1]
    top = TlsFactory(shown, factory) if secure else factory
    port = reactor.adoptStreamPort(listener.fileno(), listener.family, top)
    listener.close()
    server = Server(reactor, factory, port, clock, lines, recorded)
    before = open_descriptors(server.number) - 1  # the port's own
    try:
        yield server
        await server.end()
        await until(reactor, lambda: open_descriptors(server.number) <= before)
    finally:
        pool.stop()
        sendfile_pool.stop()
