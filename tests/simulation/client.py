"""A simulated client: reads an image whole and by ranges, at several replicas, and checks what it gets."""

from __future__ import annotations

import os
from math import inf
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, TimeoutError  # noqa: A004 - it is another than the built-in one
from twisted.internet.task import deferLater

from image_service.core.extents import FileExtent, Literal, Zeros
from image_service.server.http.head import Request
from tests.simulation.oracle import ANSWER_SECONDS, BEGINNING_BYTES, WINDOW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.core.extents import Extent
    from image_service.server.transport.exchanges.exchange import PreparedResponse, RangeResponder
    from tests.simulation.events import Machine
    from tests.simulation.oracle import Oracle
    from tests.simulation.replica import Replica

ALONE_SECONDS = 1.0
"""Before the end of a mount's window, in which it is open whether the mount goes on."""
GIVE_UP_SECONDS = 10.0
"""After which a client waits no longer."""
BROKEN = 0.1
"""The part of responses after whose beginning the connection breaks."""
CONTENT = frozenset({200, 206})
"""Statuses of responses with content."""
REFUSALS = frozenset({401, 403, 404, 409})
"""Statuses of what assisted-service refuses."""


@attrs.frozen(str=False)
class Asked:
    """A request as a client sends it, and what it may be answered.

    Args:
        start: of the range; None: the whole.
        validator: a header field and its entity tag.
        mount: the only entity tag that a range without validator may have; None: any.
    """

    target: str = attrs.field(repr=False)
    method: str
    start: int | None = None
    stop: int = 0
    validator: tuple[str, str] | None = None
    mount: str | None = None

    def __str__(self) -> str:
        part = "" if self.start is None else f" {self.start}-{self.stop}"
        name, etag = self.validator or ("", "")
        mount = f" of {self.mount[:9]}" if self.mount else ""
        return f"{self.method}{part}{name and ' '}{name} {etag[:9]}{mount}".rstrip()

    @property
    def is_plain_range(self) -> bool:
        """True if it has a range and no validator."""
        return self.start is not None and self.validator is None

    @property
    def headers(self) -> dict[str, str]:
        """The header fields."""
        fields = {"host": "images.test"}
        if self.start is not None:
            fields["range"] = f"bytes={self.start}-{self.stop - 1}"
        if self.validator is not None:
            fields[self.validator[0]] = self.validator[1]
        return fields


@attrs.define(eq=False)
class Reply:
    """A response: its head, its content, and what is to be told when that is sent.

    Args:
        was_awaited: the replica had to wait for something before it could respond.
        content: that has arrived.
    """

    status: int
    fields: dict[str, str]
    body: Sequence[Extent]
    end: Callable[[], None]
    was_awaited: bool = True
    content: bytes = attrs.field(default=b"", repr=False)


@attrs.define(eq=False)
class SimulatedClient:
    """One client, which reads one image.

    Args:
        is_complete: its URL says all; else assisted-service says which image it gets.
        size: of the image.
        may_break: its connections break now and then.
        etags: that it has seen.
        reading: the entity tag of what it is in the middle of.
        read_at: when it last read of that.
        open_requests: that are not over.
        has_overlap: there were several at a time, so that it is open which of them the service took last.
    """

    name: str
    address: str
    infra_env: str
    token: str
    size: int
    machine: Machine
    oracle: Oracle
    is_complete: bool = True
    may_break: bool = True
    etags: list[str] = attrs.field(factory=list)
    reading: str | None = None
    read_at: float = -inf
    open_requests: int = 0
    has_overlap: bool = False
    _connections: dict[Replica, tuple[str, RangeResponder]] = attrs.field(factory=dict)

    def use_token(self, token: str) -> None:
        """Go on with other credentials: the service takes it for another client."""
        self.token, self.reading = token, None
        self._connections.clear()
        self.etags.clear()

    def ask_whole(self, method: str = "GET", validator: tuple[str, str] | None = None) -> Asked:
        """Return a request for the whole image."""
        return Asked(self.target, method, validator=validator)

    def ask_range(self, start: int, stop: int, validator: tuple[str, str] | None = None) -> Asked:
        """Return a request for a part."""
        is_reading = self.machine.seconds() < self.read_at + WINDOW_SECONDS - ALONE_SECONDS
        is_further = self.open_requests == 0 and validator is None and start >= BEGINNING_BYTES
        return Asked(
            self.target, "GET", start, stop, validator, self.reading if is_further and is_reading else None
        )

    @property
    def target(self) -> str:
        """What it requests."""
        if self.is_complete:
            return f"/byid/{self.infra_env}/4.20/x86_64/full.iso?api_key={self.token}"
        return f"/clusters/{self.infra_env}/downloads/image?api_key={self.token}"

    async def send(self, replica: Replica, asked: Asked) -> Reply | None:
        """Send a request, read the response, and check both; None: there was none."""
        events, asked_at, token = self.machine.events, self.machine.seconds(), self.token
        if asked.method == "GET" and asked.mount is None:
            self.reading = None
        self.has_overlap = self.has_overlap or self.open_requests > 0
        self.open_requests += 1
        reply, content = None, b""
        try:
            await deferLater(self.machine, events.chance.uniform(0.0005, 0.02))
            reply = await self._exchange(replica, asked)
            if reply is not None:
                content, is_whole = await self._read(replica, reply)
                reply.content = content
                self._check(asked, reply, content, asked_at, token, is_whole=is_whole)
                etag = reply.fields.get("ETag", "")[:9]
                events.record(
                    f"{self.name} {asked} {replica.machine.name}: {reply.status} {len(content)} {etag}"
                )
            else:
                events.record(f"{self.name} {asked} {replica.machine.name}: nothing")
            return reply
        finally:
            is_alone = not self.has_overlap
            self.open_requests -= 1
            self.has_overlap = self.has_overlap and self.open_requests > 0
            if (
                reply is not None
                and asked.method == "GET"
                and reply.status in CONTENT
                and token == self.token
            ):
                self.etags = [*self.etags, reply.fields["ETag"]][-3:]
                is_heard = events.now > self.oracle.unheard_until  # else another replica may not know
                self.reading = self.etags[-1] if is_alone and is_heard else None
                self.read_at = events.now

    async def _exchange(self, replica: Replica, asked: Asked) -> Reply | None:
        if replica.handler is None:
            self._connections.pop(replica, None)
            return None
        arrived: Deferred[Reply] = Deferred()
        replica.machine.callLater(0, self._handle, replica, asked, arrived)
        self.machine.callLater(
            ANSWER_SECONDS, self._check_time, replica, asked, arrived, self.machine.seconds()
        )
        try:
            return await arrived.addTimeout(GIVE_UP_SECONDS, self.machine)
        except TimeoutError:
            self._connections.pop(replica, None)
            return None

    def _handle(self, replica: Replica, asked: Asked, arrived: Deferred[Reply]) -> None:
        """Have a replica respond, by the range stream of the connection if it can."""
        if replica.handler is None:  # it is stopping
            arrived.callback(Reply(503, {}, (), lambda: None))
            return
        target, stream = self._connections.pop(replica, ("", None))
        if stream is not None and target == asked.target and asked.is_plain_range:
            message = stream.respond_to_range(asked.start or 0, asked.stop - 1, replica.machine.seconds())
            if message is not None:
                self._connections[replica] = target, stream
                fields, body = message
                reply = Reply(206, _parse(fields), body, stream.hold_mount(), was_awaited=False)
                self._deliver(reply, arrived)
                return
        request = Request(asked.method, asked.target, asked.headers, keep_alive=True)
        prepared = replica.handler.handle(request, self.address, overloaded=False)
        if isinstance(prepared, Deferred):
            prepared.addCallback(self._respond, replica, asked, arrived, was_awaited=not prepared.called)
        else:
            self._respond(prepared, replica, asked, arrived, was_awaited=False)

    def _respond(
        self,
        prepared: PreparedResponse,
        replica: Replica,
        asked: Asked,
        arrived: Deferred[Reply],
        *,
        was_awaited: bool,
    ) -> None:
        if replica.machine.is_dead:
            return
        response = prepared.response
        if prepared.ranges is not None:
            self._connections[replica] = asked.target, prepared.ranges
        fields = _parse(response.fields)
        self._deliver(Reply(response.status, fields, response.body, prepared.on_end, was_awaited), arrived)

    def _deliver(self, reply: Reply, arrived: Deferred[Reply]) -> None:
        def deliver() -> None:
            if not arrived.called:
                arrived.callback(reply)

        self.machine.callLater(self.machine.events.chance.uniform(0.0005, 0.02), deliver)

    async def _read(self, replica: Replica, reply: Reply) -> tuple[bytes, bool]:
        """Read what is sent, in two parts; the second is missing if replica or connection ends."""
        content = b"".join(map(_read_extent, reply.body))
        first = self.machine.events.chance.randrange(len(content) + 1)
        if content:
            await deferLater(self.machine, self.machine.events.chance.random() ** 3 * 0.3)
        if replica.machine.is_dead:
            return content[:first], first == len(content)
        replica.machine.callLater(0, reply.end)
        if self.may_break and self.machine.events.chance.random() < BROKEN:
            self._connections.pop(replica, None)
            return content[:first], False
        return content, True

    # Checks.

    def _check_time(self, replica: Replica, asked: Asked, arrived: Deferred[Reply], since: float) -> None:
        machine = replica.machine
        was_there = not machine.is_dead and not replica.is_stopping and machine.paused_since is None
        if not arrived.called and was_there and machine.latest_pause < since:
            self.oracle.fail(
                f"{self.name} {asked} was not answered by {machine.name} within {ANSWER_SECONDS} s"
            )

    def _check(  # noqa: PLR0913 - all of an exchange
        self, asked: Asked, reply: Reply, content: bytes, asked_at: float, token: str, *, is_whole: bool
    ) -> None:
        if reply.status not in {*CONTENT, 304}:
            if reply.status == 500:
                self.oracle.fail(f"{asked} is answered with 500")
            if reply.status in REFUSALS and asked.start is None:  # else a mount may be lost
                self.oracle.check_refusal(self.infra_env, token, asked_at)
            return
        etag = reply.fields.get("ETag", "")
        for fault in self._faults_of_head(asked, reply, etag):
            self.oracle.fail(f"{asked} is answered with {fault}")
        start, stop = (asked.start or 0, asked.stop) if reply.status == 206 else (0, self.size)
        if is_whole and asked.method == "GET" and reply.status != 304 and len(content) != stop - start:
            self.oracle.fail(f"{asked} is answered with {len(content)} bytes")
        if content:
            self.oracle.check_bytes(self.infra_env, token, etag, start, content)
        self.oracle.check_permission(self.infra_env, token, asked_at)
        if reply.status == 200:
            self.oracle.check_text(self.infra_env, etag, asked_at)
        is_mount = asked.mount is not None and not self.has_overlap and asked_at > self.oracle.unheard_until
        if is_mount and etag != asked.mount:
            self.oracle.fail(f"{asked} is answered with {etag[:9]}")

    def _faults_of_head(self, asked: Asked, reply: Reply, etag: str) -> Iterator[str]:
        """Yield what is wrong with the status and the fields of a response with an image (RFC 9110)."""
        name, named = asked.validator or ("", "")
        if reply.status == 304:
            if name != "if-none-match" or etag != named:
                yield f"304 and {etag}"
            return
        length = self.size
        if reply.status == 206:
            length = asked.stop - (asked.start or 0)
            part = f"bytes {asked.start}-{asked.stop - 1}/{self.size}"
            if reply.fields.get("Content-Range") != part:
                yield f"Content-Range: {reply.fields.get('Content-Range')}"
            if named and etag != named:
                yield f"a part of {etag}"
        elif name == "if-match":
            yield "the whole"
        if reply.fields.get("Content-Length") != str(length):
            yield f"Content-Length: {reply.fields.get('Content-Length')}"


def _parse(fields: bytes) -> dict[str, str]:
    lines = fields.decode("latin-1").split("\r\n")
    return {name: value for name, _, value in (line.partition(": ") for line in lines) if name}


def _read_extent(extent: Extent) -> bytes:
    match extent:
        case FileExtent():
            return os.pread(extent.file.descriptor, extent.length, extent.offset)
        case Literal():
            return bytes(extent.data)
        case Zeros():
            return bytes(extent.length)
