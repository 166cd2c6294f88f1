"""The client of assisted-service: timeouts, cancellation and concurrency."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from twisted.internet import tcp
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import deferLater

from image_service.core.errors import UpstreamTimeout
from image_service.server.assisted import responses
from image_service.server.assisted.client import THREAD_BYTES, AssistedService
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import (
    ID,
    LONG_SECONDS,
    RAMDISK,
    TIMEOUT_SECONDS,
    client_of,
    config_of,
    error_of,
)
from tests.server.assisted.clocked import ClockedReactor
from tests.server.assisted.upstream import OK, issue, upstream
from tests.server.standalone.faults import Break, Call, Fault, FaultyStandalone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


async def timed_out(
    reactor: EPollReactor,
    clocked: ClockedReactor,
    fetching: Coroutine[Any, Any, object],
    is_pending: Callable[[], object],
) -> UpstreamTimeout:
    """Return the error after the timeout, which begins to pass once the call is pending at the server."""
    call = Deferred.fromCoroutine(error_of(fetching))
    while not is_pending():
        await deferLater(reactor, 0.005)
    clocked.clock.advance(TIMEOUT_SECONDS)
    error = await call
    assert isinstance(error, UpstreamTimeout)
    return error


@pytest.mark.parametrize("broken", [Break.HANG, Break.STALL])
@pytest.mark.parametrize("deadline", ["silence_timeout_seconds", "upstream_timeout_seconds"])
@ensure_deferred
async def test_hanging_upstream_is_504_and_its_connection_closed(
    reactor: EPollReactor, standalone: FaultyStandalone, broken: Break, deadline: str
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(broken=broken)
    standalone.faults[Call.RAMDISK] = Fault(status=200, body=RAMDISK, broken=broken)
    timeouts = {
        "silence_timeout_seconds": LONG_SECONDS,
        "upstream_timeout_seconds": LONG_SECONDS,
        deadline: TIMEOUT_SECONDS,
    }
    clocked: Any = ClockedReactor(reactor)
    assisted = AssistedService(
        clocked,
        standalone.base_url,
        ca_file=standalone.ca_file,
        **timeouts,  # type: ignore[arg-type]
    )
    for fetching, call in (
        (assisted.fetch_ignition(infra_env_id, None, None), Call.IGNITION),
        (assisted.fetch_ramdisk(infra_env_id, None), Call.RAMDISK),
    ):
        counted = partial(standalone.calls.__getitem__, (infra_env_id, call))
        assert (await timed_out(reactor, clocked, fetching, counted)).retry_after_seconds
    await no_connections(reactor, standalone)
    await assisted.close()


@ensure_deferred
async def test_connection_is_closed_although_the_peer_does_not_read(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with upstream(reactor, certificate=issue(authority, tmp_path, "127.0.0.1")) as server:
        server.answer, server.stops_reading = OK[:-1], True
        clocked: Any = ClockedReactor(reactor)
        assisted = AssistedService(
            clocked,
            f"https://127.0.0.1:{server.port}",
            ca_file=tmp_path / "ca.pem",
            silence_timeout_seconds=TIMEOUT_SECONDS,
        )
        await timed_out(reactor, clocked, assisted.fetch_ignition(ID, None, None), lambda: server.requests)
        while any(isinstance(reader, tcp.Client) for reader in reactor.getReaders()):
            await deferLater(reactor, 0.005)
        await assisted.close()


async def no_connections(reactor: EPollReactor, standalone: FaultyStandalone) -> None:
    """Wait until the stand-in has lost every connection; the timeout of the test limits the wait."""
    while any(factory.protocols for factory in standalone._factories):
        await deferLater(reactor, 0.005)


@ensure_deferred
async def test_hanging_tls_handshake_is_504(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server:  # waits for the end of a head that never comes
        clocked: Any = ClockedReactor(reactor)
        assisted = AssistedService(
            clocked, f"https://127.0.0.1:{server.port}", silence_timeout_seconds=TIMEOUT_SECONDS
        )
        await timed_out(reactor, clocked, assisted.fetch_ignition(ID, None, None), lambda: server.connections)
        await assisted.close()


@ensure_deferred
async def test_incomplete_head_is_silence(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with (
        upstream(reactor) as server,
        client_of(clocked, server, silence_timeout_seconds=TIMEOUT_SECONDS) as assisted,
    ):
        server.answer = b"HTTP/1.1 200 OK\r\nX-A: b\r\n"
        fetching = assisted.fetch_ignition(ID, None, None)
        error = await timed_out(reactor, clocked, fetching, lambda: server.requests)
    assert "no answer within 10 s" in error.detail


@ensure_deferred
async def test_response_within_the_upstream_timeout_is_accepted(
    reactor: EPollReactor, standalone: FaultyStandalone
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.INFRA_ENV] = Fault(delay_seconds=0.05)
    assisted = AssistedService(reactor, standalone.base_url, ca_file=standalone.ca_file)
    assert (await assisted.fetch_infra_env(infra_env_id, None)).openshift_version == "4.20"
    await assisted.close()


@pytest.mark.parametrize("broken", [Break.HANG, Break.STALL])
@ensure_deferred
async def test_canceled_request_closes_only_its_own_connection(
    reactor: EPollReactor, standalone: FaultyStandalone, assisted: AssistedService, broken: Break
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(broken=broken)
    fetching = Deferred.fromCoroutine(assisted.fetch_ignition(infra_env_id, None, None))
    while not standalone.calls[infra_env_id, Call.IGNITION]:
        await deferLater(reactor, 0.005)
    other = Deferred.fromCoroutine(assisted.fetch_infra_env(infra_env_id, None))
    fetching.cancel()
    with pytest.raises(CancelledError):
        await fetching
    assert (await other).openshift_version == "4.20"
    await assisted.close()
    await no_connections(reactor, standalone)


@ensure_deferred
async def test_request_canceled_before_connecting_fails(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server, client_of(reactor, server) as assisted:
        fetching = Deferred.fromCoroutine(assisted.fetch_ignition(ID, None, None))
        fetching.cancel()
        with pytest.raises(CancelledError):
            await fetching


@ensure_deferred
async def test_close_cancels_requests_in_flight(
    reactor: EPollReactor, standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(broken=Break.HANG)
    fetching = Deferred.fromCoroutine(assisted.fetch_ignition(infra_env_id, None, None))
    while not standalone.calls[infra_env_id, Call.IGNITION]:
        await deferLater(reactor, 0.005)
    await assisted.close()
    with pytest.raises(CancelledError):
        await fetching
    await no_connections(reactor, standalone)


@ensure_deferred
async def test_concurrent_requests_get_their_own_responses(
    standalone: FaultyStandalone, assisted: AssistedService
) -> None:
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(sign_token=True)
    fetching = [Deferred.fromCoroutine(assisted.fetch_ignition(infra_env_id, None, None)) for _ in range(20)]
    configs = {ignition.config for ignition in await gatherResults(fetching)}
    assert len(configs) == 20
    assert standalone.calls[infra_env_id, Call.IGNITION] == 20


@pytest.mark.parametrize("excess", [0, 1])
@ensure_deferred
async def test_large_json_is_parsed_in_a_thread(
    standalone: FaultyStandalone, assisted: AssistedService, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(responses, "check_ignition", lambda _: threads.append(threading.current_thread()))
    infra_env_id = str(await standalone.ensure_sample("4.20"))
    standalone.faults[Call.IGNITION] = Fault(body=config_of(THREAD_BYTES + excess))
    await assisted.fetch_ignition(infra_env_id, None, None)
    assert [thread is threading.current_thread() for thread in threads] == [not excess]
