"""The access log: a line a request, but one for the many ranges that a connection reads of an image."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.http.exchange import Subject

SUMMARY_SECONDS = 10
COMPLETE = "complete"

_TEXT_CHARACTERS = 200
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_RANGE = re.compile(r"bytes=[0-9, -]{1,180}")
_PARTIAL_CONTENT = 206


@attrs.frozen
class AccessLog:
    """What all connections' logs have in common.

    Args:
        clock: for durations and the summaries' timer.
        each_range: give every range a line of its own (``LOG_RANGES=each``).
    """

    clock: IReactorTime
    each_range: bool = False
    logger: Logger = attrs.field(factory=lambda: Logger(namespace="access"), repr=False)

    def has_own_line(self, status: int) -> bool:
        """Whether an answer that ends well is logged by itself."""
        return self.each_range or status != _PARTIAL_CONTENT


@attrs.frozen
class Entry:
    """One request and how it went.

    Args:
        request_id: empty: the line gets a new one.
        method: as sent; empty where the head could not be read.
        user_agent: as sent.
        range: the Range field as sent.
        subject: what it was about.
        status: of the answer; 0: there was none.
        code: the error's code, if it was an error.
        body_bytes: bytes of content that the transport took.
        seconds: from the head's arrival to the end.
        ended: ``complete``, or why not.
    """

    request_id: str
    method: str
    user_agent: str
    range: str
    subject: Subject
    status: int
    code: str
    body_bytes: int
    seconds: float
    ended: str


@attrs.define
class _Summary:
    subject: Subject
    user_agent: str
    request_id: str
    began: float
    ranges: int = 0
    body_bytes: int = 0


class ConnectionLog:
    """One connection's lines.

    Args:
        log: what it has in common with the others.
        client: the peer's address.
    """

    def __init__(self, log: AccessLog, client: str) -> None:
        self._log = log
        self._client = client
        self._summary: _Summary | None = None
        self._timer: IDelayedCall | None = None

    def add(self, entry: Entry) -> None:
        """Log a request, or count it among the ranges that the next summary tells of."""
        if entry.ended == COMPLETE and not self._log.has_own_line(entry.status):
            self._count(entry)
        else:
            self._write(entry)

    def close(self) -> None:
        """The connection has ended: write what has been counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def _count(self, entry: Entry) -> None:
        summary = self._summary
        if summary is None or (summary.subject, summary.user_agent) != (entry.subject, entry.user_agent):
            self._flush()
            began = self._log.clock.seconds() - entry.seconds
            summary = _Summary(entry.subject, entry.user_agent, entry.request_id, began)
            self._summary = summary
            if self._timer is None:
                self._timer = self._log.clock.callLater(SUMMARY_SECONDS, self._expire)
        summary.ranges += 1
        summary.body_bytes += entry.body_bytes

    def _expire(self) -> None:
        self._timer = None
        self._flush()

    def _flush(self) -> None:
        summary, self._summary = self._summary, None
        if summary is not None:
            self._log.logger.info(
                "{ranges} ranges of {infra_env} {kind} to {client}, {bytes} bytes",
                id=summary.request_id or new_request_id(),
                client=self._client,
                method="GET",
                user_agent=summary.user_agent[:_TEXT_CHARACTERS],
                handler=summary.subject.handler,
                infra_env=summary.subject.infra_env,
                kind=summary.subject.kind,
                status=_PARTIAL_CONTENT,
                ranges=summary.ranges,
                bytes=summary.body_bytes,
                seconds=round(self._log.clock.seconds() - summary.began, 6),
                ended=COMPLETE,
            )

    def _write(self, entry: Entry) -> None:
        self._log.logger.info(
            "{method} {handler} {infra_env} {kind} to {client}: {status}, {bytes} bytes, {ended}",
            id=entry.request_id or new_request_id(),
            client=self._client,
            method=entry.method,
            user_agent=entry.user_agent[:_TEXT_CHARACTERS],
            handler=entry.subject.handler,
            infra_env=entry.subject.infra_env,
            kind=entry.subject.kind,
            range=entry.range if _RANGE.fullmatch(entry.range) else "",
            status=entry.status,
            code=entry.code,
            bytes=entry.body_bytes,
            seconds=round(entry.seconds, 6),
            ended=entry.ended,
        )


def new_request_id() -> str:
    """Make an identifier for a request that brought none."""
    return uuid.uuid4().hex


def known_request_id(value: str | None) -> str:
    """The identifier that a request brought, if it is fit to be echoed and logged; else empty."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else ""
