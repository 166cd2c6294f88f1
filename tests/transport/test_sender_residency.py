"""Files with a presence of their own, as bases that stay remote: what is not here comes when asked for."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.images.extents import BaseFile, ExtentMap, FileExtent
from tests.pytwisted import ensure_deferred
from tests.transport.client import request
from tests.transport.image import MIB, Image, make_image
from tests.transport.turns import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.transport.image import ImageApplication
    from tests.transport.serving import Server

BLOCK_BYTES = 300_000


class Remote:
    """Fetches blocks when a test lets it; what has not been fetched is a hole.

    Args:
        path: of the file to fetch to.
        content: elsewhere.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.asked: list[tuple[FileExtent, Deferred[None]]] = []
        self.dropped = 0
        self._content = content
        self._fetched: set[int] = set()
        path.touch()
        os.truncate(path, len(content))
        self.file = BaseFile(os.open(path, os.O_RDWR), len(content), str(path), self)

    def present(self, extent: FileExtent) -> int:
        """Count what has been fetched from there on."""
        stop = extent.offset
        while stop // BLOCK_BYTES in self._fetched:
            stop = (stop // BLOCK_BYTES + 1) * BLOCK_BYTES
        return min(stop - extent.offset, extent.length)

    async def bring(self, extent: FileExtent) -> None:
        """Fetch the blocks when the test says so."""
        fetched: Deferred[None] = Deferred()
        self.asked.append((extent, fetched))
        try:
            await fetched
        except CancelledError:
            self.dropped += 1
            raise
        for block in range(
            extent.offset // BLOCK_BYTES, (extent.offset + extent.length - 1) // BLOCK_BYTES + 1
        ):
            start = block * BLOCK_BYTES
            os.pwrite(self.file.descriptor, self._content[start : start + BLOCK_BYTES], start)
            self._fetched.add(block)

    def answer(self) -> None:
        """Let what was asked for first come."""
        self.asked.pop(0)[1].callback(None)


@pytest.fixture
def remote(tmp_path: Path, application: ImageApplication) -> Iterator[Remote]:
    """Of which everything is served."""
    local = make_image(tmp_path)
    os.close(local.file.descriptor)
    remote = Remote(tmp_path / "remote", local.content)
    extents = ExtentMap((FileExtent(remote.file, 0, remote.file.size),))
    application.image = Image(extents, local.content, remote.file)
    yield remote
    os.close(remote.file.descriptor)


@pytest.mark.parametrize("target", ["/image", "/image/0-1000", "/image/299999-300001", "/image/5-400000"])
@ensure_deferred
async def test_what_is_absent_is_waited_for(
    server: Server, application: ImageApplication, remote: Remote, target: str
) -> None:
    client = await server.client()
    await client.send(request(target, "Connection: close"))
    answers = Deferred.fromCoroutine(client.answers())
    while not answers.called:
        await until(server.reactor, lambda: remote.asked or answers.called)
        if remote.asked:
            ((extent, _),) = remote.asked
            assert extent.length <= MIB
            remote.answer()
    (received,) = await answers
    start, dash, stop = target.removeprefix("/image").strip("/").partition("-")
    wanted = slice(int(start), int(stop)) if dash else slice(None)
    assert received.body == application.image.content[wanted]


@ensure_deferred
async def test_what_is_present_waits_for_nobody(
    server: Server, application: ImageApplication, remote: Remote
) -> None:
    first, other = await server.client(), await server.client()
    await first.send(request("/image/0-300000"))
    await until(server.reactor, lambda: remote.asked)
    remote.answer()
    await first.answer()
    await first.send(request("/image/0-600000"))
    await until(server.reactor, lambda: remote.asked)
    for start in range(0, 270_000, 30_000):
        answer = await other.ask(f"/image/{start}-{start + 30_000}")
        assert answer.body == application.image.content[start : start + 30_000]
    assert [extent.offset for extent, _ in remote.asked] == [300_000], "and what was there has been sent"
    remote.answer()
    assert (await first.answer()).body == application.image.content[:600_000]


@ensure_deferred
async def test_what_nobody_waits_for_any_more_is_dropped(server: Server, remote: Remote) -> None:
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, lambda: remote.asked)
    client.reset()
    await server.all_gone()
    assert remote.dropped == 1


@ensure_deferred
async def test_what_cannot_be_had_cuts_the_answer(server: Server, remote: Remote) -> None:
    client = await server.client()
    await client.send(request("/image"))
    await until(server.reactor, lambda: remote.asked)
    remote.asked.pop()[1].errback(OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)))
    await client.until_cut()
    assert [line["ended"] for line in server.lines] == ["the disk failed: [Errno 113] No route to host"]
