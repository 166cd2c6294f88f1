"""A connection that reads an image range by range: leases answer, and nobody can tell."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.pytwisted import ensure_deferred
from tests.server.serving.asking import TARGET, Service
from tests.server.snapshots.doubles import ID, TTL_SECONDS, World
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import Client, bytes_of
from tests.server.transport.client import request
from tests.server.transport.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.defer import Deferred
    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.http.head import Request
    from image_service.server.transport.exchanges.exchange import PreparedResponse

OTHER = TARGET.replace("x86_64", "aarch64")
LONG = f"X-Long: {'x' * 3000}"


@attrs.define(eq=False)
class Asked:
    """A request handler that keeps the ranges that it is asked for."""

    world: World
    ranges: list[str] = attrs.field(factory=list)
    _service: Service = attrs.field(init=False)

    @_service.default
    def _make_service(self) -> Service:
        return Service(self.world)

    def handle(
        self, request: Request, address: str, *, overloaded: bool
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """As `RequestHandler.handle`."""
        self.ranges.append(request.headers.get("range", ""))
        return self._service.handler.handle(request, address, overloaded=overloaded)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with make_world() as world:
        yield Asked(world)


def content(asked: Asked, architecture: str = "x86_64") -> bytes:
    whole = Client(asked.world)
    return bytes_of(attrs.evolve(whole, ref=attrs.evolve(whole.ref, architecture=architecture)).whole())


@ensure_deferred
async def test_handler_sees_only_the_first_range_of_a_mount(reactor: EPollReactor, asked: Asked) -> None:
    image = content(asked)
    async with serving(reactor, asked) as server:
        client = await server.client()
        for first in range(0, 50_000, 1000):
            answer = await client.ask(TARGET, f"Range: bytes={first}-{first + 4095}", "User-Agent: bmc")
            assert (answer.status, answer.body) == (206, image[first : first + 4096])
        assert asked.ranges == ["bytes=0-4095"]
        assert [each[:3] for each in server.recorded.requests] == [("/byid/:token", "GET", 206)] * 50
        assert len(server.recorded.answers) == 50
    (line,) = server.lines
    assert (line["ranges"], line["bytes"], line["user_agent"]) == (50, 50 * 4096, "bmc")
    assert line["infra_env"] == ID


@pytest.mark.parametrize("seed", range(20))
@ensure_deferred
async def test_any_sequence_of_requests_is_answered_as_each_alone(
    reactor: EPollReactor, asked: Asked, seed: int
) -> None:
    images = {TARGET: content(asked), OTHER: content(asked, "aarch64")}
    chosen = random.Random(seed)  # noqa: S311 - a test's choices
    wanted, expected = [], []
    for _ in range(60):
        target, first = chosen.choice([TARGET, OTHER]), chosen.randrange(10**5)
        last = first + chosen.randrange(-2, 2000)
        fields = chosen.choice([(), (), (), (LONG,), ("If-Range: x",), ("X-Request-ID: a",)])
        method = chosen.choice(["GET", "GET", "GET", "HEAD"])
        wanted.append(request(target, f"Range: bytes={first}-{last}", *fields, method=method))
        is_part = method == "GET" and "If-Range: x" not in fields and first <= last
        part = images[target][first : last + 1] if is_part else images[target]
        expected.append((method, 206 if is_part else 200, b"" if method == "HEAD" else part))
    wanted.append(request("/live", "Connection: close"))
    async with serving(reactor, asked) as server:
        client = await server.client()
        await client.send(b"".join(wanted))
        answers = await client.answers([method for method, _, _ in expected])
    assert [(each.status, each.body) for each in answers[:-1]] == [each[1:] for each in expected]


@ensure_deferred
async def test_handler_sees_ranges_that_the_stream_leaves_to_it(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        for index, (numbers, status) in enumerate([("0-9", 206), ("10-19", 206), (f"{10**12}-", 416)]):
            answer = await client.ask(TARGET, f"Range: bytes={numbers}")
            assert answer.status == status, index
        await client.ask(TARGET, "Range: bytes=0-9")
        await client.ask(TARGET, f"Range: bytes={10**12}-{10**12 + 1}")
        await client.ask(TARGET, "Range: bytes=20-29")
        asked.world.clock.advance(TTL_SECONDS)
        await client.ask(TARGET, "Range: bytes=30-39")
    assert asked.ranges == [
        "bytes=0-9",
        f"bytes={10**12}-",
        "bytes=0-9",
        f"bytes={10**12}-{10**12 + 1}",
        "bytes=20-29",
        "bytes=30-39",
    ]


@ensure_deferred
async def test_each_log_line_has_its_own_range(reactor: EPollReactor, asked: Asked) -> None:
    async with serving(reactor, asked, each_range=True) as server:
        client = await server.client()
        for first in range(3):
            await client.ask(TARGET, f"Range: bytes={first}-9", "X-Request-ID: a")
    assert [line["range"] for line in server.lines] == ["bytes=0-9", "bytes=1-9", "bytes=2-9"]
    assert [line["bytes"] for line in server.lines] == [10, 9, 8]
    assert {line["id"] for line in server.lines} == {"a"}


@ensure_deferred
async def test_further_range_during_shutdown_closes_the_connection(
    reactor: EPollReactor, asked: Asked
) -> None:
    async with serving(reactor, asked) as server:
        client = await server.client()
        for expected in (None, "close"):
            answer = await client.ask(TARGET, "Range: bytes=0-9")
            assert answer.fields.get("connection") == expected
            server.factory.announce_shutdown()
        assert await client.read_until_close() == b""
