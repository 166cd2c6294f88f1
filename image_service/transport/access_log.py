"""The access log: a line a request, but one for the many ranges that a connection reads of an image."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Protocol

import attrs
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.transport.exchange import Subject

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


class LoggedRequest(Protocol):
    """A request that is over, as far as the log tells of it."""

    @property
    def request_id(self) -> str:
        """Empty: the line gets a new one."""

    @property
    def method(self) -> str:
        """As sent; empty where the head could not be read."""

    @property
    def user_agent(self) -> str:
        """As sent."""

    @property
    def range(self) -> str:
        """The Range field."""

    @property
    def subject(self) -> Subject:
        """What it was about."""

    @property
    def status(self) -> int:
        """Of the answer; 0: there was none."""

    @property
    def code(self) -> str:
        """The error's code, if it was an error."""


@attrs.define
class _Summary:
    subject: Subject
    user_agent: str
    request_id: str
    began: float
    ranges: int = 0
    body_bytes: int = 0
    told: LoggedRequest | None = None
    """Of the latest range, if there are more for the same."""


class ConnectionLog:
    """One connection's lines.

    Args:
        log: what it has in common with the others.
        client: the peer's address.
    """

    __slots__ = ("_client", "_log", "_summary", "_timer")

    def __init__(self, log: AccessLog, client: str) -> None:
        self._log = log
        self._client = client
        self._summary: _Summary | None = None
        self._timer: IDelayedCall | None = None

    def add(self, told: LoggedRequest, body_bytes: int, seconds: float, ended: str) -> None:
        """Log a request, or count it among the ranges that the next summary tells of.

        Args:
            told: the request.
            body_bytes: bytes of content that the transport took.
            seconds: from the head's arrival to the end.
            ended: ``complete``, or why not.
        """
        if ended == COMPLETE and not self._log.has_own_line(told.status):
            self._count(told, body_bytes, seconds)
        else:
            self._write(told, body_bytes, seconds, ended)

    def add_further(self, told: LoggedRequest, body_bytes: int) -> None:
        """Count a range among those that the next summary tells of.

        Args:
            told: a request, the same object for all that are alike.
            body_bytes: bytes of content that the transport took.
        """
        summary = self._summary
        if summary is None or summary.told is not told:
            self._count(told, body_bytes, 0.0).told = told
            return
        summary.ranges += 1
        summary.body_bytes += body_bytes

    def close(self) -> None:
        """The connection has ended: write what has been counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def _count(self, told: LoggedRequest, body_bytes: int, seconds: float) -> _Summary:
        summary = self._summary
        if summary is None or (summary.subject, summary.user_agent) != (told.subject, told.user_agent):
            summary = self._begin_summary(told, seconds)
        summary.ranges += 1
        summary.body_bytes += body_bytes
        return summary

    def _begin_summary(self, told: LoggedRequest, seconds: float) -> _Summary:
        self._flush()
        began = self._log.clock.seconds() - seconds
        self._summary = summary = _Summary(told.subject, told.user_agent, told.request_id, began)
        if self._timer is None:
            self._timer = self._log.clock.callLater(SUMMARY_SECONDS, self._expire)
        return summary

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

    def _write(self, told: LoggedRequest, body_bytes: int, seconds: float, ended: str) -> None:
        self._log.logger.info(
            "{method} {handler} {infra_env} {kind} to {client}: {status}, {bytes} bytes, {ended}",
            id=told.request_id or new_request_id(),
            client=self._client,
            method=told.method,
            user_agent=told.user_agent[:_TEXT_CHARACTERS],
            handler=told.subject.handler,
            infra_env=told.subject.infra_env,
            kind=told.subject.kind,
            range=told.range if _RANGE.fullmatch(told.range) else "",
            status=told.status,
            code=told.code,
            bytes=body_bytes,
            seconds=round(seconds, 6),
            ended=ended,
        )


def new_request_id() -> str:
    """Make an identifier for a request that brought none."""
    return uuid.uuid4().hex


def known_request_id(value: str | None) -> str:
    """The identifier that a request brought, if it is fit to be echoed and logged; else empty."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else ""
