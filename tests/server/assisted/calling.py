"""Helpers for tests of the client: calls, scripted responses and test data."""

from __future__ import annotations

import gzip
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from image_service.core.errors import ImageServiceError
from image_service.core.formats.newc import Member, write_archive
from image_service.server.assisted.client import AssistedService
from tests.server.assisted.upstream import IGNITION, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from twisted.internet.epollreactor import EPollReactor


ID = "5a3b1e00-0000-4000-8000-000000000009"
SECRET = "s3cret"
LONG_SECONDS = 60.0
TIMEOUT_SECONDS = 10.0
RAMDISK = gzip.compress(write_archive([Member("etc/a", b"b")]), mtime=0)
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def client_of(
    reactor: EPollReactor, server: Upstream, path: str = "", **timeouts: float
) -> AsyncIterator[AssistedService]:
    assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}{path}", **timeouts)  # type: ignore[arg-type]
    try:
        yield assisted
    finally:
        await assisted.close()


async def error_of(fetching: Coroutine[Any, Any, object]) -> ImageServiceError:
    with pytest.raises(ImageServiceError) as caught:
        await fetching
    error = caught.value
    assert error.__context__ is None or error.__suppress_context__, "an exception's text may quote the answer"
    return error


def response(head: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def target(request: bytes) -> tuple[str, dict[str, list[str]]]:
    split = urlsplit(request.split(b" ")[1].decode())
    return split.path, parse_qs(split.query)


def config_of(size: int) -> bytes:
    return IGNITION[:-1] + b" " * (size - len(IGNITION)) + b"}"
