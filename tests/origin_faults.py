"""What an origin may do wrong with a range: replies that a reader of a pinned version must not believe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from tests.server.catalog.origin import Reply

if TYPE_CHECKING:
    from tests.server.catalog.origin import ReceivedRequest, Resource

Fault: TypeAlias = Callable[[Reply], Reply]
"""Takes the right reply to a range, and returns a wrong one."""
EXPIRED_PATH = "/expired"
"""Scripted by the test to answer 403, as links do that are valid for minutes."""


@attrs.define
class FaultyResource:
    """A file whose replies to ranges can be spoilt.

    Args:
        resource: the file.
        fault: None: its replies are right.
        spoilt: number of replies that the fault changed.
    """

    resource: Resource
    fault: Fault | None = None
    spoilt: int = 0

    def __call__(self, request: ReceivedRequest) -> Reply:
        """Return the reply to a request."""
        reply = self.resource(request)
        if self.fault is None or reply.status != 206:
            return reply
        self.spoilt += 1
        return self.fault(reply)


def refuse(status: int) -> Fault:
    """Return a fault: another status, as of an origin that is overloaded or broken."""
    return lambda _: Reply(b"not now", status, {"Retry-After": "1"})


def cut(reply: Reply) -> Reply:
    """Close the connection in the middle of the body."""
    return attrs.evolve(reply, body=reply.body[: len(reply.body) // 2], promised=len(reply.body))


def reset(reply: Reply) -> Reply:
    """Reset the connection in the middle of the body."""
    return attrs.evolve(cut(reply), reset=True)


def shorten(reply: Reply) -> Reply:
    """Send less than Content-Range says, with a fitting Content-Length."""
    return attrs.evolve(reply, body=reply.body[: len(reply.body) // 2])


def answer_whole(reply: Reply) -> Reply:
    """Ignore the range: 200, with as many other bytes as were asked for."""
    headers = {name: value for name, value in reply.headers.items() if name != "Content-Range"}
    return attrs.evolve(_invert(reply), status=200, headers=headers)


def shift(reply: Reply) -> Reply:
    """Send the bytes of another place, and say so in Content-Range."""
    return _with_content_range(_invert(reply), lambda first, last, total: (first + 1, last + 1, total))


def change_total(reply: Reply) -> Reply:
    """Say in Content-Range that the file has another size."""
    return _with_content_range(_invert(reply), lambda first, last, total: (first, last, total + 1))


def change_etag(reply: Reply) -> Reply:
    """Send another version in spite of If-Match, as caches do that are keyed by URL."""
    return _with_header(_invert(reply), "ETag", '"another"')


def weaken_etag(reply: Reply) -> Reply:
    """Send other bytes under a weak ETag."""
    return _with_header(_invert(reply), "ETag", f"W/{reply.headers.get('ETag', '')}")


def encode(reply: Reply) -> Reply:
    """Send bytes that are not those of the file, and say so in Content-Encoding."""
    return _with_header(_invert(reply), "Content-Encoding", "gzip")


def drip(reply: Reply) -> Reply:
    """Send one byte a second."""
    return attrs.evolve(reply, drip=1, drip_seconds=1.0)


def hold(reply: Reply) -> Reply:
    """Send the head and nothing else, until the origin is released."""
    return attrs.evolve(reply, body=b"", promised=len(reply.body), hold=True)


def redirect_to_expired_link(reply: Reply) -> Reply:
    """Redirect to a link that is not valid any more."""
    del reply
    return Reply(status=302, headers={"Location": f"{EXPIRED_PATH}?signature=expired"})


def corrupt(reply: Reply) -> Reply:
    """Send other bytes under the right head: only a digest shows it."""
    return _invert(reply)


FAULTS: Mapping[str, Fault] = {
    "200": answer_whole,
    "429": refuse(429),
    "500": refuse(500),
    "503": refuse(503),
    "cut": cut,
    "reset": reset,
    "short": shorten,
    "other range": shift,
    "other size": change_total,
    "other ETag": change_etag,
    "weak ETag": weaken_etag,
    "encoded": encode,
    "redirect to an expired link": redirect_to_expired_link,
    "a byte a second": drip,
}
"""All that a client without digests can notice."""


def _invert(reply: Reply) -> Reply:
    """Replace each byte by another one, so that a single believed byte is noticed."""
    return attrs.evolve(reply, body=reply.body.translate(bytes(range(255, -1, -1))))


def _with_header(reply: Reply, name: str, value: str) -> Reply:
    return attrs.evolve(reply, headers={**reply.headers, name: value})


def _with_content_range(reply: Reply, change: Callable[[int, int, int], tuple[int, int, int]]) -> Reply:
    numbers = [int(number) for number in re.findall(r"\d+", reply.headers["Content-Range"])]
    first, last, total = change(*numbers)
    return _with_header(reply, "Content-Range", f"bytes {first}-{last}/{total}")
