"""What each answer of assisted-service means for what is pinned: one row per answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet import error as network
from twisted.web.http_headers import Headers

from image_service.core.errors import ImageServiceError
from image_service.server.assisted.failures import error_of_exception, error_of_status, upstream_timeout
from image_service.server.assisted.responses import CompleteResponse, parse_ignition
from image_service.server.http.problem import status_of
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from image_service.server.snapshots.versions import ImageRequest
from tests.server.snapshots.doubles import GRACE_SECONDS, TTL_SECONDS
from tests.server.snapshots.mounting import bytes_of, restart, rounds, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.snapshots.doubles import World
    from tests.server.snapshots.mounting import Client


def _body(content: bytes) -> ImageServiceError:
    try:
        parse_ignition(CompleteResponse("the Ignition config", Headers(), content))
    except ImageServiceError as error:
        return error
    raise AssertionError(content)


def _status(status: int) -> Callable[[], ImageServiceError]:
    return lambda: error_of_status(status, Headers(), "the Ignition config")


ERRORS: dict[str, Callable[[], ImageServiceError]] = {
    "network error": lambda: error_of_exception(network.ConnectionRefusedError(), "the Ignition config"),
    "no connection": lambda: error_of_exception(network.TimeoutError(), "the Ignition config"),
    "time-out": lambda: upstream_timeout("no answer"),
    "200, not JSON": lambda: _body(b"<html>"),
    "200, not Ignition": lambda: _body(b"{}"),
}
# The answer, what it means, and the status of requests that are not served because of it.
TABLE: list[tuple[str, str, int]] = [
    ("204", "failed", 502),
    ("301", "refused", 502),
    ("302", "refused", 502),
    ("304", "refused", 502),
    ("307", "refused", 502),
    ("400", "refused", 400),
    ("401", "refused", 401),
    ("402", "refused", 502),
    ("403", "refused", 403),
    ("404", "refused", 404),
    ("405", "refused", 502),
    ("407", "refused", 502),
    ("408", "failed", 502),
    ("409", "refused", 409),
    ("410", "refused", 404),
    ("418", "refused", 502),
    ("421", "refused", 502),
    ("422", "refused", 422),
    ("425", "failed", 502),
    ("429", "failed", 503),
    ("451", "refused", 502),
    ("500", "failed", 502),
    ("502", "failed", 502),
    ("503", "failed", 502),
    ("504", "failed", 502),
    ("599", "failed", 502),
    ("network error", "failed", 502),
    ("no connection", "failed", 504),
    ("time-out", "failed", 504),
    ("200, not JSON", "failed", 502),
    ("200, not Ignition", "refused", 422),
]


def error_of(answer: str) -> ImageServiceError:
    return ERRORS[answer]() if answer in ERRORS else _status(int(answer))()


def statuses(client: Client) -> set[int | None]:
    """What a mount, a range by its ETag, a whole GET and another client are told; None: they are served."""
    newcomer = attrs.evolve(client, address="192.0.2.99")
    asked = (client.ask(), client.ask(ImageRequest(client.reader)), newcomer.ask())
    errors = [None if each.succeeded else each.error for each in asked]
    return {status_of(error) if isinstance(error, ImageServiceError) else None for error in errors}


@pytest.mark.parametrize(("answer", "meaning", "status"), TABLE)
def test_meaning_of_an_answer(world: World, client: Client, answer: str, meaning: str, status: int) -> None:
    first = client.range()
    world.clock.advance(TTL_SECONDS)
    world.assisted.failures["ignition"] = error_of(answer)
    served = {None if meaning == "failed" else status}
    assert statuses(client) == served
    restart(world)
    assert statuses(client) == served
    for _ in range(int(GRACE_SECONDS / RETRY_SECONDS)):  # it goes on: for the grace from its first call on
        world.clock.advance(RETRY_SECONDS)
        client.ask()
    assert statuses(client) == {status}
    world.assisted.failures.clear()
    say(world)
    world.clock.advance(RETRY_SECONDS)
    assert statuses(client) == {None}
    assert bytes_of(client.range()) == bytes_of(first)


@pytest.mark.parametrize(("answer", "meaning"), [(answer, meaning) for answer, meaning, _ in TABLE])
def test_other_answer_after_it(world: World, client: Client, answer: str, meaning: str) -> None:
    first = bytes_of(client.range())
    world.clock.advance(TTL_SECONDS - 1)
    client.range()
    world.clock.advance(1)
    world.assisted.failures["ignition"] = error_of(answer)
    client.ask()
    world.assisted.failures.clear()
    say(world, "changed")
    world.clock.advance(RETRY_SECONDS)
    assert bytes_of(attrs.evolve(client, address="192.0.2.99").range()) != first
    mount = client.ask()
    if meaning == "refused":
        assert not mount.succeeded
    else:
        assert bytes_of(mount.composed) == first
    assert bytes_of(client.whole()) != first


@pytest.mark.parametrize("text", ["", "changed"])
def test_answer_200_without_a_refusal(world: World, client: Client, text: str) -> None:
    first = client.range()
    world.clock.advance(TTL_SECONDS)
    say(world, text)
    assert statuses(client) == {None}
    assert rounds(world) == 2
    newest = attrs.evolve(client, address="192.0.2.98").range()
    assert (bytes_of(newest) == bytes_of(first)) is not bool(text)
