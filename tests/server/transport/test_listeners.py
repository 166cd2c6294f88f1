"""Listeners and their shutdown, with a clock that the test advances."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.server.transport.listeners import Listeners, cannot_listen
from image_service.server.transport.sending.tcp import bind_together
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import SUBJECT
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

DELAY, TIMEOUT = 5, 20


def listeners_of(*servers: Server) -> Listeners:
    listeners = Listeners(servers[0].clock)
    for server in servers:
        listeners.add(server.port, server.factory)
    return listeners


def close(listeners: Listeners) -> Deferred[None]:
    return Deferred.fromCoroutine(listeners.close(DELAY, TIMEOUT))


async def reader(server: Server) -> Client:
    """Return a client in the middle of a download."""
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await until(server.reactor, lambda: server.factory.context.slots.acquired)
    return client


def check_refuses(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.number))


@ensure_deferred
async def test_connections_and_handlers_of_all_listeners_are_counted(serve: Serve) -> None:
    plain, tls = await serve(), await serve(secure=True)
    listeners = listeners_of(plain, tls)
    clients = [await reader(plain), await reader(tls), await tls.client()]
    assert listeners.connections == 3
    assert list(listeners.handlers()) == [SUBJECT.handler] * 2
    for client in clients:
        client.reset()
    await until(plain.reactor, lambda: not listeners.connections)


@ensure_deferred
async def test_connections_of_a_removed_port_stay(server: Server) -> None:
    listeners = listeners_of(server)
    client = await server.client()
    await client.ask("/image/0-9")
    listeners.remove(server.port)
    listeners.remove(server.port)
    await turns(server.reactor)
    check_refuses(server)
    assert (await client.ask("/image/0-9")).status == 200
    assert listeners.connections == 1
    client.close()
    await until(server.reactor, lambda: not listeners.connections)


@ensure_deferred
async def test_two_ports_of_one_factory_are_counted_once(server: Server) -> None:
    listeners = listeners_of(server, server)
    client = await server.client()
    await client.ask("/image/0-9")
    assert listeners.connections == 1
    client.close()
    await until(server.reactor, lambda: not listeners.connections)


@pytest.mark.parametrize("processes", [1, 3])
def test_connections_spread_over_processes_and_another_service_cannot_bind(processes: int) -> None:
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in bind_together(0, processes)]
        number = listeners[0].getsockname()[1]
        for others in (1, processes):
            with pytest.raises(OSError, match="Address already in use"):
                bind_together(number, others)
        clients = 60
        for _ in range(clients):
            stack.enter_context(socket.create_connection(("127.0.0.1", number)))
        accepted = [_accept_all(stack, listener) for listener in listeners]
    assert sum(accepted) == clients
    assert all(accepted)


def _accept_all(stack: ExitStack, listener: socket.socket) -> int:
    for count in itertools.count():
        try:
            stack.enter_context(listener.accept()[0])
        except BlockingIOError:
            return count
    raise AssertionError


@ensure_deferred
async def test_shutdown_without_listeners_waits_for_nothing() -> None:
    clock = Clock()
    await Listeners(clock).close(DELAY, TIMEOUT)
    assert clock.getDelayedCalls() == []


@ensure_deferred
async def test_responses_during_the_delay_close_their_connections(server: Server) -> None:
    listeners = listeners_of(server)
    used, unused = await server.client(), await server.client()
    await used.ask("/image/0-9")
    before, closing, after = listeners.shutting_down, close(listeners), listeners.shutting_down
    assert (before, after) == (False, True)
    await server.advance(DELAY - 1)
    for client in (used, unused, await server.client()):
        answer = await client.ask("/image/0-9")
        assert (answer.status, answer.closes) == (200, True)
        assert await client.read_until_close() == b""
        client.close()
    await server.advance(1)
    await closing


@ensure_deferred
async def test_kept_alive_connections_are_answered_during_the_delay(server: Server, image: Image) -> None:
    """The response in progress has allowed another request: closing after it could meet that request."""
    client = await reader(server)
    closing = close(listeners_of(server))
    first = await client.answer()
    assert (first.body, first.closes) == (image.content, False)
    assert await client.is_silent()
    assert (await client.ask("/image/0-9")).closes
    assert await client.read_until_close() == b""
    client.close()
    await server.advance(DELAY)
    await closing


@ensure_deferred
async def test_ports_and_idle_connections_close_after_the_delay(server: Server, image: Image) -> None:
    idle, busy = await server.client(), await reader(server)
    closing = close(listeners_of(server))
    await server.advance(DELAY - 1)
    assert await idle.is_silent()
    await server.advance(1)
    assert await idle.read_until_close() == b""
    idle.close()
    check_refuses(server)
    (answer,) = await busy.answers()
    assert answer.body == image.content
    busy.close()
    await closing
    assert server.clock.getDelayedCalls() == []


@ensure_deferred
async def test_connections_are_aborted_after_the_timeout(server: Server, handler: ImageHandler) -> None:
    slow, waiting = await reader(server), await server.client()
    await waiting.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    closing = close(listeners_of(server))
    await server.advance(DELAY + TIMEOUT - 1)
    assert len(server.factory.connections) == 2
    await server.advance(1)
    await closing
    for client in (slow, waiting):
        await client.read_until_abort()
    assert server.recorded.aborts == ["shutdown"] * 2


@ensure_deferred
async def test_all_listeners_shut_down_together(serve: Serve) -> None:
    plain, tls = await serve(), await serve(secure=True)
    readers = [await reader(plain), await reader(tls)]
    closing = close(listeners_of(plain, tls))
    assert (plain.factory.context.shutdown.announced, tls.factory.context.shutdown.announced) == (True, True)
    await plain.advance(DELAY)
    for server in (plain, tls):
        check_refuses(server)
    for server in (plain, tls):  # each has a clock of its own here
        await server.advance(TIMEOUT)
    await closing
    for client in readers:
        await client.read_until_abort()


@pytest.mark.parametrize("passed", [0, DELAY - 1, DELAY, DELAY + 1])
@ensure_deferred
async def test_forced_shutdown_waits_for_nothing(server: Server, passed: int) -> None:
    client = await reader(server)
    listeners = listeners_of(server)
    closing = close(listeners)
    await server.advance(passed)
    listeners.force()
    listeners.force()
    await server.advance(0)
    server.clock.advance(0)
    await closing
    await client.read_until_abort()
    assert server.clock.seconds() == passed
    assert server.clock.getDelayedCalls() == []


@ensure_deferred
async def test_shutdown_forced_from_the_beginning(server: Server) -> None:
    client = await reader(server)
    listeners = listeners_of(server)
    listeners.force()
    assert await client.receive(1000)  # it has to begin before it can be cut short
    closing = close(listeners)
    await server.advance(0)
    server.clock.advance(0)
    await closing
    await client.read_until_abort()


@pytest.mark.parametrize(
    ("error", "host", "fault"),
    [
        (
            errno.EADDRINUSE,
            None,
            "LISTEN_PORT=80: port 80 is in use by another process; choose another port",
        ),
        (
            errno.EACCES,
            "::1",
            (
                "LISTEN_PORT=80: this process has no permission for ::1 port 80; choose a port from 1024 on, "
                "or grant the capability CAP_NET_BIND_SERVICE"
            ),
        ),
        (
            errno.EADDRNOTAVAIL,
            "192.0.2.1",
            (
                "LISTEN_ADDRESS=192.0.2.1: this host has no interface with the address 192.0.2.1; choose an "
                "address that it has"
            ),
        ),
        (errno.EMFILE, None, "LISTEN_PORT=80: cannot listen on port 80: Too many open files"),
    ],
)
def test_fault_of_a_socket_names_variable_and_remedy(error: int, host: str | None, fault: str) -> None:
    raised = OSError(error, os.strerror(error))
    described = cannot_listen("LISTEN_PORT", host, 80, raised, address_variable="LISTEN_ADDRESS")
    assert described.detail == fault


def test_fault_of_an_address_and_port_in_one_variable_shows_both() -> None:
    raised = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    described = cannot_listen("STANDALONE_LISTEN", "2001:db8::1", 8090, raised)
    assert described.detail.startswith("STANDALONE_LISTEN=[2001:db8::1]:8090: this host has no interface")
