"""Senders of files whose bytes are partly absent: absent bytes are prefetched, never sent as holes."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.common.files.block_cache.source import OriginFailed
from image_service.core.extents import ExtentMap, FileExtent
from image_service.server.transport import absent_content
from tests.common.files.partly_absent import PartlyAbsent
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, Image, make_image
from tests.server.transport.reactor_turns import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.base_file import BaseFile
    from tests.server.transport.image_handler import ImageHandler
    from tests.server.transport.server import Server

BLOCK_BYTES = 100_000


class Remote(PartlyAbsent):
    """Prefetches when a test lets it.

    Args:
        path: of the file to fetch to.
        content: elsewhere.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(path, content, BLOCK_BYTES)
        self.asked: list[tuple[int, int, Deferred[None]]] = []
        self.dropped = 0

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Fetch the blocks when the test says so."""
        fetched: Deferred[None] = Deferred()
        self.asked.append((offset, length, fetched))
        try:
            await fetched
        except CancelledError:
            self.dropped += 1
            raise
        await super().prefetch(file, offset, length)

    def answer(self) -> None:
        """Deliver the first request."""
        self.asked.pop(0)[2].callback(None)


@pytest.fixture
def remote(tmp_path: Path, handler: ImageHandler) -> Iterator[Remote]:
    """A file that is served whole."""
    local = make_image(tmp_path)
    os.close(local.file.descriptor)
    remote = Remote(tmp_path / "remote", local.content)
    extents = ExtentMap((FileExtent(remote.file, 0, remote.file.size),))
    handler.image = Image(extents, local.content, remote.file)
    yield remote
    os.close(remote.file.descriptor)


@pytest.fixture
def first_block(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block is present, and enough for a response to begin."""
    monkeypatch.setattr(absent_content, "BEGINNING_BYTES", BLOCK_BYTES)
    remote.fetch(0, BLOCK_BYTES)


@pytest.mark.parametrize("target", ["/image", "/image/0-1000", "/image/299999-300001", "/image/5-400000"])
@ensure_deferred
async def test_absent_bytes_are_prefetched(
    server: Server, handler: ImageHandler, remote: Remote, target: str
) -> None:
    client = await server.client()
    await client.send(request(target, "Connection: close"))
    answers = Deferred.fromCoroutine(client.answers())
    while not answers.called:
        await until(server.reactor, lambda: remote.asked or answers.called)
        if remote.asked:
            ((_, length, _),) = remote.asked
            assert length <= MIB
            remote.answer()
    (received,) = await answers
    start, dash, stop = target.removeprefix("/image").strip("/").partition("-")
    wanted = slice(int(start), int(stop)) if dash else slice(None)
    assert received.body == handler.image.content[wanted]


@pytest.mark.usefixtures("first_block")
@ensure_deferred
async def test_present_bytes_are_sent_without_waiting(
    server: Server, handler: ImageHandler, remote: Remote
) -> None:
    first, other = await server.client(), await server.client()
    await first.send(request("/image/0-600000"))
    await until(server.reactor, lambda: remote.asked)
    for start in range(0, 90_000, 30_000):
        answer = await other.ask(f"/image/{start}-{start + 30_000}")
        assert answer.body == handler.image.content[start : start + 30_000]
    assert [offset for offset, _, _ in remote.asked] == [100_000], "and what was there has been sent"
    answering = Deferred.fromCoroutine(first.answer())
    while not answering.called:
        await until(server.reactor, lambda: remote.asked or answering.called)
        if remote.asked:
            remote.answer()
    assert (await answering).body == handler.image.content[:600_000]


@pytest.mark.usefixtures("first_block")
@ensure_deferred
async def test_prefetch_is_canceled_when_the_client_disconnects(server: Server, remote: Remote) -> None:
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, lambda: remote.asked)
    client.reset()
    await server.wait_until_closed()
    assert remote.dropped == 1


UNREACHABLE = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (UNREACHABLE, "the disk failed: [Errno 113] No route to host"),
        (OriginFailed("it answered 500"), "the origin failed: it answered 500"),
    ],
)
@pytest.mark.usefixtures("first_block")
@ensure_deferred
async def test_failed_prefetch_aborts_a_response_that_has_begun(
    server: Server, remote: Remote, error: OSError, ended: str
) -> None:
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, lambda: remote.asked)
    remote.asked.pop()[2].errback(error)
    await client.read_until_abort()
    assert [line["ended"] for line in server.lines] == [ended]


@pytest.mark.usefixtures("first_block")
@ensure_deferred
async def test_response_that_has_begun_waits_ten_seconds_for_its_origin(
    server: Server, remote: Remote
) -> None:
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, lambda: remote.asked)
    server.clock.advance(9.9)
    assert not server.lines
    server.clock.advance(0.2)
    await client.read_until_abort()
    assert [line["ended"] for line in server.lines] == ["the origin failed: no bytes came for 10 s"]
    assert server.recorded.aborts == ["origin-failed"]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            OriginFailed("it answered 500", retry_after_seconds=7),
            "the origin of the base image failed: it answered 500",
        ),
        (UNREACHABLE, "the block cache failed: No route to host"),
    ],
)
@ensure_deferred
async def test_failed_prefetch_before_the_head_is_a_503(
    server: Server, remote: Remote, error: OSError, detail: str
) -> None:
    client = await server.client()
    await client.send(request("/image/5-70000"))
    await until(server.reactor, lambda: remote.asked)
    remote.asked.pop()[2].errback(error)
    answer = await client.answer()
    assert answer.status == 503
    assert json.loads(answer.body)["detail"] == detail
    assert answer.fields["retry-after"] == ("7" if "500" in detail else "1")


@ensure_deferred
async def test_slow_origin_is_a_503_after_two_and_a_half_seconds(server: Server, remote: Remote) -> None:
    client = await server.client()
    await client.send(request("/image/5-70000"))
    await until(server.reactor, lambda: remote.asked)
    server.clock.advance(2.4)
    assert not server.lines
    server.clock.advance(0.2)
    answer = await client.answer()
    assert (answer.status, answer.fields["retry-after"]) == (503, "1")
