"""A small image of every kind of extent, and a request handler that serves it without any other part."""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, succeed

from image_service.common.files.local_file import LocalFile
from image_service.core.errors import NotFound, Unavailable
from image_service.core.extents import ExtentMap, FileExtent, Literal, Overlay, Zeros, apply_overlays
from image_service.server.http.problem import problem
from image_service.server.http.response import Response, render_fields
from image_service.server.transport.exchanges.exchange import PreparedResponse, Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.core.base_file import BaseFile
    from image_service.core.extents import Extent
    from image_service.server.http.head import Request

MIB = 1024 * 1024
FILE_BYTES = 8 * MIB
_TARGET = re.compile(r"/(?P<how>image|part|fired|later)(?:/(?P<start>[0-9]{1,8})-(?P<stop>[0-9]{1,8}))?")
PROBES = ("/health", "/live")
SUBJECT = Subject("/image")


@attrs.frozen(eq=False)
class Image:
    """What is served, and the same bytes composed naively.

    Args:
        extents: of a file, laid over by literals and zeros.
        content: the whole.
        file: the base.
    """

    extents: ExtentMap
    content: bytes = attrs.field(repr=False)
    file: BaseFile


def make_image(directory: Path) -> Image:
    """Make an image; its file is open, and to be closed by the caller."""
    content = bytearray(random.Random(3).randbytes(FILE_BYTES))  # noqa: S311 - any bytes will do
    path = directory / "base"
    path.write_bytes(content)
    file = LocalFile(os.open(path, os.O_RDONLY), FILE_BYTES, str(path))
    literal = random.Random(4).randbytes(300_000)  # noqa: S311 - same
    overlays = [
        Overlay(100, Literal(b"kernel arguments")),
        Overlay(2 * MIB + 7, Literal(literal)),
        Overlay(2 * MIB + 7 + len(literal), Zeros(700_001)),
    ]
    for overlay in overlays:
        data = overlay.data.data if isinstance(overlay.data, Literal) else bytes(overlay.data.length)
        content[overlay.offset : overlay.stop] = data
    base = ExtentMap((FileExtent(file, 0, FILE_BYTES),))
    return Image(apply_overlays(base, overlays), bytes(content), file)


@attrs.define(eq=False)
class ImageHandler:
    """A request handler that serves parts of an image.

    ``/image`` is the whole, ``/image/START-STOP`` a part, ``/part/START-STOP`` the same as a 206;
    ``/fired/START-STOP`` is returned as a Deferred that has fired, ``/later/START-STOP`` as one that the test
    fires.

    Args:
        image: what is served.
        asked: called with every request.
        subject: of its responses.
        given: how many responses with the image were returned.
        ended: how many of them have ended.
    """

    image: Image
    asked: Callable[[Request], object] = lambda _: None
    subject: Subject = SUBJECT
    targets: list[str] = attrs.field(factory=list, init=False)
    waiting: list[tuple[Deferred[PreparedResponse], PreparedResponse]] = attrs.field(factory=list, init=False)
    given: int = attrs.field(default=0, init=False)
    ended: int = attrs.field(default=0, init=False)

    def handle(
        self,
        request: Request,
        address: str,  # noqa: ARG002 - part of the protocol
        *,
        overloaded: bool,
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Respond to a request."""
        self.targets.append(request.target)
        self.asked(request)
        if request.target in PROBES:
            return answer(request, (Literal(b"well\n"),))
        if overloaded:
            error = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return PreparedResponse(problem(error, request.headers, head_only=request.method == "HEAD"))
        return self._answer_image(request)

    def _answer_image(self, request: Request) -> PreparedResponse | Deferred[PreparedResponse]:
        target = _TARGET.fullmatch(request.target)
        if target is None:
            error = NotFound("there is nothing else")
            return PreparedResponse(problem(error, request.headers, head_only=request.method == "HEAD"))
        size = self.image.extents.size
        stop = min(int(target["stop"] or size), size)
        part = self.image.extents.slice(min(int(target["start"] or 0), stop), stop)
        made = answer(request, part, status=206 if target["how"] == "part" else 200)
        made = attrs.evolve(made, subject=self.subject, on_end=self._end)
        if target["how"] == "later":
            return self._wait(made)
        self.given += 1
        return succeed(made) if target["how"] == "fired" else made

    def _wait(self, made: PreparedResponse) -> Deferred[PreparedResponse]:
        self.waiting.append((Deferred(), made))
        return self.waiting[-1][0]

    def answer_next(self) -> None:
        """Fire the first Deferred that has not fired."""
        deferred, made = self.waiting.pop(0)
        self.given += 1
        deferred.callback(made)

    def _end(self) -> None:
        self.ended += 1


def answer(request: Request, body: tuple[Extent, ...], status: int = 200) -> PreparedResponse:
    """Return the response to a GET or HEAD."""
    length = sum(extent.length for extent in body)
    fields = render_fields(("Content-Length", str(length)), ("Accept-Ranges", "bytes"))
    return PreparedResponse(
        Response(status, fields, body if request.method == "GET" else (), length), SUBJECT
    )
