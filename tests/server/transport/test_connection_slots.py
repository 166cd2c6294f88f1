"""The slots of downloads: waiting for one, responses meanwhile, and the release of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.server.transport.admission.rate import WINDOW_SECONDS
from image_service.server.transport.admission.slots import ANSWER_SECONDS, CHECK_SECONDS, SLOT_TIMEOUT_SECONDS
from image_service.settings.network import LimitSettings
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, PROBES
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

LIMITS = LimitSettings()
LARGE = f"/image/0-{2 * MIB}"


@async_fixture
async def narrow(serve_both: Serve) -> AsyncIterator[Server]:
    """Serve with one slot."""
    yield await serve_both(downloads=1)


async def holder(server: Server) -> Client:
    """Return a client that holds a slot and does not read."""
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await until(server.reactor, lambda: server.factory.context.slots.acquired)
    return client


async def waiter(server: Server, *sent: bytes) -> Client:
    """Return a client that waits for a slot, by default for a download larger than any buffer."""
    before = server.factory.context.slots.waiting
    client = await server.client()
    await client.send(b"".join(sent) or request("/image"))
    await until(server.reactor, lambda: server.factory.context.slots.waiting > before)
    return client


def close(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    client.reset()


ways = pytest.mark.parametrize("leave", [close, reset])


@ensure_deferred
async def test_small_responses_are_sent_while_every_slot_is_acquired(narrow: Server, image: Image) -> None:
    await holder(narrow)
    client = await narrow.client()
    assert (await client.ask(f"/part/0-{MIB}")).body == image.content[:MIB]
    assert (await client.ask("/image", method="HEAD")).status == 200
    for probe in PROBES:
        assert (await client.ask(probe)).status == 200
    assert (await client.ask("/nothing")).status == 404
    assert narrow.factory.context.slots.waiting == 0


@ensure_deferred
async def test_download_waits_for_a_slot(narrow: Server, image: Image) -> None:
    first, second = await holder(narrow), await waiter(narrow)
    await narrow.advance(SLOT_TIMEOUT_SECONDS - 1)
    assert await second.is_silent()
    for client in (first, second):
        assert (await client.answer()).body == image.content


@ensure_deferred
async def test_download_is_refused_after_the_timeout_and_the_connection_persists(narrow: Server) -> None:
    await holder(narrow)
    client = await waiter(narrow, request(LARGE), request("/image/0-9"))
    await narrow.advance(SLOT_TIMEOUT_SECONDS)
    refusal, small = await client.answer(), await client.answer()
    assert (refusal.status, refusal.closes, small.status) == (503, False, 200)
    assert int(refusal.fields["retry-after"]) > 0
    assert json.loads(refusal.body)["code"] == "unavailable"
    (refused, _) = narrow.lines
    assert (refused["handler"], refused["status"], refused["code"]) == ("/image", 503, "unavailable")
    assert narrow.recorded.refusals == ["queue-wait"]


@ensure_deferred
async def test_waits_for_the_image_and_for_the_slot_share_a_limit(
    narrow: Server, handler: ImageHandler
) -> None:
    await holder(narrow)
    client = await narrow.client()
    await client.send(request(f"/later/0-{2 * MIB}"))
    await until(narrow.reactor, lambda: handler.waiting)
    await narrow.advance(ANSWER_SECONDS - 1)
    handler.answer_next()
    assert await client.is_silent()
    await narrow.advance(1)
    assert (await client.answer()).status == 503


@pytest.mark.parametrize(("free", "status"), [(True, 200), (False, 503)])
@ensure_deferred
async def test_late_image_is_sent_if_a_slot_is_free(
    narrow: Server, handler: ImageHandler, free: object, status: int
) -> None:
    if not free:
        await holder(narrow)
    client = await narrow.client()
    await client.send(request(f"/later/0-{2 * MIB}"))
    await until(narrow.reactor, lambda: handler.waiting)
    await narrow.advance(ANSWER_SECONDS + 1)
    handler.answer_next()
    narrow.clock.advance(0)  # the next turn of its reactor
    assert (await client.answer()).status == status


@ensure_deferred
async def test_slots_are_granted_in_the_order_of_the_requests(narrow: Server) -> None:
    """The second download of a pipelining client waits behind the others."""
    greedy = await narrow.client(receive_buffer=SMALL_BUFFER)
    await greedy.send(request("/image", "X-Request-ID: a1") + request("/image", "X-Request-ID: a2"))
    await until(narrow.reactor, lambda: narrow.factory.context.slots.acquired)
    others = [await waiter(narrow, request(LARGE, f"X-Request-ID: {name}")) for name in "bc"]
    for client in (greedy, *others, greedy):
        await client.answer()
    await until(narrow.reactor, lambda: len(narrow.lines) == 4)
    assert [line["id"] for line in narrow.lines] == ["a1", "b", "c", "a2"]


@ensure_deferred
async def test_half_closed_client_in_the_queue_is_served(narrow: Server, image: Image) -> None:
    first, second = await holder(narrow), await waiter(narrow)
    if not narrow.factory.secure:  # TLS has no half of a connection
        second.finish_sending()
    await turns(narrow.reactor)
    await first.answer()
    assert (await second.answer()).body == image.content


# A slot comes back, whatever becomes of the download.


@ways
@ensure_deferred
async def test_slot_is_released_when_the_client_disconnects(
    narrow: Server, leave: Callable[[Client], None]
) -> None:
    first, second = await holder(narrow), await waiter(narrow)
    leave(first)
    assert (await second.answer()).status == 200


@ways
@ensure_deferred
async def test_queue_is_left_when_the_client_disconnects(
    narrow: Server, leave: Callable[[Client], None]
) -> None:
    first = await holder(narrow)
    leaving = await waiter(narrow)
    third = await waiter(narrow)
    leave(leaving)
    await turns(narrow.reactor)
    await first.answer()
    assert (await third.answer()).status == 200


@ways
@ensure_deferred
async def test_no_slot_is_acquired_for_a_disconnected_client(
    narrow: Server, handler: ImageHandler, leave: Callable[[Client], None]
) -> None:
    client = await narrow.client()
    await client.send(request("/later"))
    await until(narrow.reactor, lambda: handler.waiting)
    leave(client)
    await turns(narrow.reactor)
    handler.answer_next()  # to nobody, which a close on plain TCP does not say yet
    await narrow.wait_until_closed()
    assert narrow.factory.context.slots.acquired == 0


@ensure_deferred
async def test_slot_is_released_when_the_client_stalls(narrow: Server) -> None:
    await holder(narrow)
    await narrow.advance_until_closed(LIMITS.stall_seconds)
    assert narrow.factory.context.slots.acquired == 0


@ensure_deferred
async def test_slots_are_released_at_shutdown(narrow: Server) -> None:
    await holder(narrow)
    await waiter(narrow)
    going = Deferred.fromCoroutine(narrow.factory.drain(1))
    await narrow.advance(1)
    await going
    assert (narrow.factory.context.slots.acquired, narrow.factory.context.slots.waiting) == (0, 0)


@ensure_deferred
async def test_slot_is_released_when_the_kernel_accepts_everything(narrow: Server) -> None:
    """The download ends within the call that started it, and the next pipelined one starts."""
    client = await narrow.client()
    await client.send(request(LARGE) * 3)
    for _ in range(3):
        assert (await client.answer()).status == 200
    assert narrow.factory.context.slots.acquired == 0


@ensure_deferred
async def test_slow_download_is_aborted_for_one_that_waits(narrow: Server, image: Image) -> None:
    slow = await holder(narrow)
    refused = await waiter(narrow)
    await narrow.advance(SLOT_TIMEOUT_SECONDS)
    assert (await refused.answer()).status == 503
    await narrow.advance(WINDOW_SECONDS)
    waiting = await waiter(narrow)
    await narrow.advance(CHECK_SECONDS)
    assert (await waiting.answer()).body == image.content
    await slow.read_until_abort()
    assert narrow.recorded.aborts == ["too-slow"]
    (ended,) = [line["ended"] for line in narrow.lines if line["ended"] != "complete"]
    assert ended == "slower than 65536 bytes/s while other downloads waited"


@ensure_deferred
async def test_slow_download_goes_on_while_none_waits(narrow: Server, image: Image) -> None:
    slow = await holder(narrow)
    await narrow.advance(3 * WINDOW_SECONDS)
    assert (await slow.answer()).body == image.content
