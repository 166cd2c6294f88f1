"""The client of assisted-service: slots of calls, and which calls share a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater

from image_service.core.errors import UpstreamError, UpstreamQueueFull, UpstreamTimeout
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.assisted.call_slots import WAIT_SECONDS
from image_service.server.assisted.client import AssistedService
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import ID, TIMEOUT_SECONDS, client_of, error_of, response
from tests.server.assisted.clocked import ClockedReactor
from tests.server.assisted.upstream import IGNITION, OK, upstream

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.address import IPv4Address
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IAddress, ITCPTransport
    from twisted.python.failure import Failure

TENANTS = [Credentials(CredentialScheme.AUTHORIZATION, f"Bearer {name}") for name in ("one", "two")]
MOMENT = 0.01
ONE_SLOT = {"upstream_timeout_seconds": TIMEOUT_SECONDS, "concurrency": 1}


async def until(reactor: EPollReactor, is_true: Callable[[], object]) -> None:
    """Wait; the timeout of the test limits it."""
    while not is_true():
        await deferLater(reactor, 0.005)


@ensure_deferred
async def test_wait_for_a_slot_is_not_a_timeout_of_assisted_service(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    outcomes: list[str] = []
    refusals: list[None] = []
    settings: Any = {
        **ONE_SLOT,
        "record": lambda _, outcome, __: outcomes.append(outcome),
        "record_refusal": lambda: refusals.append(None),
    }
    async with upstream(reactor) as server, client_of(clocked, server, **settings) as assisted:
        server.answer = b""
        first = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        await until(reactor, lambda: server.requests)
        second = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        clocked.clock.advance(WAIT_SECONDS)
        error = await second
        assert isinstance(error, UpstreamQueueFull)
        assert error.retry_after_seconds
        assert (outcomes, len(refusals), len(server.requests)) == ([], 1, 1)
        clocked.clock.advance(TIMEOUT_SECONDS - WAIT_SECONDS)
        assert isinstance(await first, UpstreamTimeout)
        assert (outcomes, len(refusals)) == (["timeout"], 1)


@ensure_deferred
async def test_timeout_begins_with_the_slot(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    durations: list[float] = []
    settings: Any = {**ONE_SLOT, "record": lambda _, __, seconds: durations.append(seconds)}
    async with upstream(reactor) as server, client_of(clocked, server, **settings) as assisted:
        server.answer = b""
        first = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        await until(reactor, lambda: server.requests)
        second = Deferred.fromCoroutine(error_of(assisted.fetch_ignition(ID, None, None)))
        clocked.clock.advance(WAIT_SECONDS - MOMENT)
        server.connections[0].abort()
        await first
        clocked.clock.advance(TIMEOUT_SECONDS - MOMENT)
        assert not second.called
        clocked.clock.advance(MOMENT)
        assert isinstance(await second, UpstreamTimeout)
        assert durations == [pytest.approx(WAIT_SECONDS - MOMENT), pytest.approx(TIMEOUT_SECONDS)]


@ensure_deferred
async def test_assisted_service_never_sees_more_calls_than_the_limit(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server, concurrency=4) as assisted:
        await assisted.fetch_ignition(ID, None, TENANTS[0])
        server.requests.clear()
        server.answer = b""
        calls = [
            Deferred.fromCoroutine(assisted.fetch_infra_env(ID, credentials, is_revalidation=is_known))
            for credentials in (None, *TENANTS)
            for is_known in (False, True)
            for _ in range(20)
        ]
        await until(reactor, lambda: len(server.requests) == 4)
        await deferLater(reactor, 0.05)
        assert len(server.requests) == 4
        for call in calls:
            call.addErrback(lambda failure: failure.trap(CancelledError))


@ensure_deferred
async def test_canceled_call_holds_its_slot_while_assisted_service_is_at_work(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server, concurrency=1) as assisted:
        server.answer = b""
        first = Deferred.fromCoroutine(assisted.fetch_ignition(ID, None, None))
        await until(reactor, lambda: server.requests)
        first.cancel()
        with pytest.raises(CancelledError):
            await first
        server.answer = OK
        second = Deferred.fromCoroutine(assisted.fetch_ignition(ID, None, None))
        assert (assisted.slots.running(), assisted.slots.waiting()) == (["anonymous"], ["anonymous"])
        server.connections[0].abort()
        assert (await second).config == IGNITION


@ensure_deferred
async def test_class_of_a_call_follows_the_latest_answer_to_its_credentials(reactor: EPollReactor) -> None:
    one, two = TENANTS
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:

        async def class_of(credentials: Credentials | None, *, is_revalidation: bool = False) -> str:
            """Return the class of a call, which fails."""
            server.answer, server.close = b"", True
            fetching = assisted.fetch_ignition(ID, None, credentials, is_revalidation=is_revalidation)
            call = Deferred.fromCoroutine(error_of(fetching))
            (found,) = assisted.slots.running()
            assert isinstance(await call, UpstreamError)
            return found

        assert await class_of(None) == "anonymous"
        assert await class_of(None, is_revalidation=True) == "revalidation"
        assert await class_of(one) == "unproven"
        for refusal in ("401 Unauthorized", "403 Forbidden", "404 Not Found"):
            server.answer, server.close = OK, False
            await assisted.fetch_ignition(ID, None, one)
            for _ in range(2):
                assert await class_of(one) == "accepted", "a failure says nothing about credentials"
            assert await class_of(one, is_revalidation=True) == "revalidation"
            assert await class_of(two) == "unproven"
            server.answer, server.close = response(refusal), False
            await error_of(assisted.fetch_ignition(ID, None, one))
            assert await class_of(one) == "unproven"


# Connections.


class LateServer(Protocol):
    """Sends a second response to each question, late: when the next question has come."""

    _late = b""

    def __init__(self, servers: LateServers) -> None:
        self._servers = servers

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        del reason
        self._servers.open -= 1

    def dataReceived(self, data: bytes) -> None:
        tenant = data.partition(b"Bearer ")[2].partition(b"\r\n")[0].decode()
        config = b'{"ignition":{"version":"3.2.0"},"of":"%b"}' % tenant.encode()
        answer = response("200 OK", config)
        tcp = cast("ITCPTransport", self.transport)
        tcp.write(self._late + answer)
        self._late = answer


@attrs.define
class LateServers(Factory):
    """Counts connections: all, and those that are open."""

    connections: int = 0
    open: int = 0
    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        del addr
        self.connections += 1
        self.open += 1
        return LateServer(self)


@ensure_deferred
async def test_late_second_response_never_answers_another_tenant(reactor: EPollReactor) -> None:
    factory = LateServers()
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    assisted = AssistedService(reactor, f"http://127.0.0.1:{cast('IPv4Address', port.getHost()).port}")
    for _ in range(40):
        for tenant in TENANTS:
            config = (await assisted.fetch_ignition(ID, None, tenant)).config
            assert config.endswith(b'"of":"%b"}' % tenant.secret.removeprefix("Bearer ").encode())
    assert factory.connections == 80
    await until(reactor, lambda: not factory.open)
    await assisted.close()
    await port.stopListening()


@pytest.mark.parametrize(("credentials", "connections"), [(None, 1), (TENANTS[0], 0)])
@ensure_deferred
async def test_only_connections_of_calls_without_credentials_are_kept(
    reactor: EPollReactor, credentials: Credentials | None, connections: int
) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        for _ in range(3):
            await assisted.fetch_ignition(ID, None, credentials)
        await until(reactor, lambda: len(server.connections) == connections)
        closes = [b"\r\nConnection: close\r\n" in request for request in server.requests]
        assert closes == [not connections] * 3
