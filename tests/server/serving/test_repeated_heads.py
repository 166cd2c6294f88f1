"""Repeated HEADs of a connection: the first response is sent again as long as it is right, not longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.coordination import SIZE_BYTES, SharedMemoryCoordination
from image_service.core.errors import Forbidden
from image_service.server.snapshots.storage.snapshot import SnapshotEvent
from tests.pytwisted import ensure_deferred
from tests.server.serving.asking import TARGET
from tests.server.serving.test_connection_ranges import Asked
from tests.server.snapshots.doubles import ID, MAX_AGE_SECONDS, TTL_SECONDS
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, say
from tests.server.transport.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport import client as transport_client
    from tests.server.transport.server import Server

PER_REQUEST = {"x-request-id", "date"}


@pytest.fixture
def asked() -> Iterator[Asked]:
    with make_world() as world:
        say(world)
        yield Asked(world)


async def head(client: transport_client.Client, *fields: str) -> tuple[int, dict[str, str]]:
    """Send a HEAD; return the status and the fields that are not different for each request."""
    response = await client.ask(TARGET, *fields, method="HEAD")
    return response.status, {
        name: value for name, value in response.fields.items() if name not in PER_REQUEST
    }


async def pass_seconds(server: Server, asked: Asked, seconds: int) -> None:
    asked.world.clock.advance(seconds)
    await server.advance(seconds)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@ensure_deferred
async def test_equal_heads_are_handled_once_and_counted_each_and_summed_in_the_log(
    reactor: EPollReactor, asked: Asked, *, secure: bool
) -> None:
    async with serving(reactor, asked, secure=secure) as server:
        client = await server.client()
        responses = [await head(client, "User-Agent: bmc") for _ in range(10)]
        assert responses == responses[:1] * 10
        assert responses[0][0] == 200
        assert len(asked.ranges) == 1, "requests that the handler has seen"
        assert [each[:3] for each in server.recorded.requests] == [("/byid/:token", "HEAD", 200)] * 10
        assert len(server.recorded.answers) == 10
    assert [(line["method"], line["infra_env"], line["user_agent"]) for line in server.lines] == [
        ("HEAD", ID, "bmc")
    ] * 2
    assert [line.get("heads") for line in server.lines] == [None, 9]
    assert len({line["id"] for line in server.lines}) == 1


@ensure_deferred
async def test_each_head_is_logged_with_log_ranges_each(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked, each_range=True) as server:
        client = await server.client()
        for _ in range(3):
            await head(client)
    assert len({line["id"] for line in server.lines}) == 3


@ensure_deferred
async def test_request_identifier_of_the_client_is_echoed_each_time(
    reactor: EPollReactor, asked: Asked
) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        for _ in range(3):
            response = await client.ask(TARGET, "X-Request-ID: a", method="HEAD")
            assert response.fields["x-request-id"] == "a"
    assert [line["id"] for line in server.lines] == ["a"] * 2


@ensure_deferred
async def test_other_requests_between_heads_are_handled(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        first = await head(client)
        etag = first[1]["etag"]
        assert (await head(client, f"If-None-Match: {etag}"))[0] == 304
        assert (await head(client, 'If-Match: "other"'))[0] == 412
        assert (await client.ask(TARGET, "Range: bytes=0-9")).status == 206
        assert await head(client) == first
        assert len(asked.ranges) == 5


@ensure_deferred
async def test_preconditions_of_repeated_heads_hold_each_time(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        etag = (await head(client))[1]["etag"]
        for _ in range(3):
            assert (await head(client, f"If-Match: {etag}"))[0] == 200
            assert (await head(client, f"If-None-Match: {etag}"))[0] == 304


@ensure_deferred
async def test_changed_customization_shows_when_the_ttl_has_passed(
    reactor: EPollReactor, asked: Asked
) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        first = await head(client)
        say(asked.world, "changed")
        await pass_seconds(server, asked, TTL_SECONDS - 1)
        assert await head(client) == first
        await pass_seconds(server, asked, 1)
        assert (await head(client))[1]["etag"] != first[1]["etag"]


@ensure_deferred
async def test_newer_snapshot_of_another_client_shows_at_once(reactor: EPollReactor, asked: Asked) -> None:
    """assisted-service is called before the TTL has passed if the snapshot is too old for a new mount."""
    async with serving(reactor, asked) as server:
        client = await server.client()
        first = await head(client)
        for _ in range(MAX_AGE_SECONDS // (TTL_SECONDS - 1)):
            assert await head(client) == first
            await pass_seconds(server, asked, TTL_SECONDS - 1)
        assert await head(client) == first
        await pass_seconds(server, asked, MAX_AGE_SECONDS % (TTL_SECONDS - 1))
        say(asked.world, "changed")
        Client(asked.world, "192.0.2.2").whole()
        assert (await head(client))[1]["etag"] != first[1]["etag"]


@ensure_deferred
async def test_refusal_of_another_client_shows_at_once(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        await head(client)
        await pass_seconds(server, asked, TTL_SECONDS - 1)
        assert (await head(client))[0] == 200
        asked.world.clock.advance(1)  # the connection's own clock stands still: its lookup is not due
        asked.world.assisted.failures["ignition"] = Forbidden("403")
        Client(asked.world, "192.0.2.2").ask()
        assert (await head(client))[0] == 403


@ensure_deferred
async def test_change_by_another_process_is_looked_up_at_once(
    reactor: EPollReactor, asked: Asked, tmp_path: Path
) -> None:
    world = asked.world
    coordination = SharedMemoryCoordination(
        memoryview(bytearray(SIZE_BYTES)), tmp_path / "locks", world.clock
    )
    world.images = world.make_images(coordination=coordination)
    asked = Asked(world)
    async with serving(reactor, asked) as server:
        client = await server.client()
        await head(client)
        await head(client)
        Client(world).ask()
        snapshot = next(world.images.mounts.versions()).snapshot
        assert snapshot is not None
        coordination.bump(snapshot.stored_key)
        await head(client)
        assert len(asked.ranges) == 2


@ensure_deferred
async def test_superseded_base_image_is_not_served_again(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        await head(client)
        for base in set(asked.world.catalog.images.values()):
            asked.world.images.retention.supersede(base)
        await head(client)
        assert len(asked.ranges) == 2


@ensure_deferred
async def test_digest_shows_once_it_is_known(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        other = await server.client()
        for _ in range(2):  # the second one by the cached lookup
            assert "repr-digest" not in (await head(client))[1]
        assert (await other.ask(f"{TARGET}.sha256")).status == 200
        assert "repr-digest" in (await head(client))[1]


@ensure_deferred
async def test_get_that_follows_heads_during_shutdown_closes_the_connection(
    reactor: EPollReactor, asked: Asked
) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        for number in range(4):
            if number == 2:
                server.factory.announce_shutdown()
            assert "connection" not in (await head(client))[1]
        assert (await client.ask(f"{TARGET}.sha256")).fields["connection"] == "close"
        assert await client.read_until_close() == b""


@ensure_deferred
async def test_each_repeated_head_is_a_snapshot_hit(reactor: EPollReactor, asked: Asked) -> None:
    events: list[SnapshotEvent] = []
    asked.world.images = asked.world.make_images(count=events.append)
    asked = Asked(asked.world)
    async with serving(reactor, asked) as server:
        client = await server.client()
        await head(client)
        before = events.count(SnapshotEvent.HIT)
        for _ in range(5):
            await head(client)
        assert events.count(SnapshotEvent.HIT) == before + 5
