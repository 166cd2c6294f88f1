"""The access log: one line per request, but one per ten seconds for the ranges that a connection reads.

Each line has an identifier, that of the request's X-Request-ID or a new one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
from twisted.logger import ILogObserver, LogLevel, globalLogPublisher

from image_service.http.ranges import has_range_characters
from image_service.transport.exchange import new_request_id

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.transport.exchange import Exchange, Subject

SUMMARY_SECONDS = 10
COMPLETE = "complete"

_MAX_USER_AGENT = 200  # characters
_PARTIAL_CONTENT = 206


@attrs.frozen
class AccessLog:
    """What the logs of all connections have in common.

    Args:
        clock: for durations and the timer of summaries.
        each_range: log each range by a line of its own (`LOG_RANGES=each`).
        observer: gets the events.
    """

    clock: IReactorTime
    each_range: bool = False
    observer: ILogObserver = attrs.field(default=globalLogPublisher, repr=False)

    def has_own_line(self, status: int) -> bool:
        """Return True if complete responses of this status are logged by a line each."""
        return self.each_range or status != _PARTIAL_CONTENT

    def write(self, text: str, fields: dict[str, str | int | float]) -> None:
        """Log an event.

        It is made here, with its text and its fields apart: Twisted's `Logger` and formatter take longer than
        everything else about a HEAD.
        """
        self.observer(
            {
                "log_level": LogLevel.info,
                "log_namespace": "access",
                "log_source": None,
                "log_format": "{log_text}",
                "log_text": text,
                "log_time": time.time(),
                "log_fields": fields,
            }
        )


@attrs.define
class _Summary:
    subject: Subject
    user_agent: str
    request_id: str
    started: float
    ranges: int = 0
    body_bytes: int = 0


class ConnectionLog:
    """The lines of one connection.

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

    def add(self, request: Exchange, body_bytes: int, seconds: float, ended: str) -> None:
        """Log a finished request, or add it to the summary of ranges.

        Args:
            request: the request.
            body_bytes: bytes of content that the kernel accepted.
            seconds: from the head's arrival to the end.
            ended: `COMPLETE`, or the reason of the abort.
        """
        if ended == COMPLETE and not self._log.has_own_line(request.status):
            self.add_range(request.subject, request.user_agent, request.request_id, body_bytes, seconds)
        else:
            self._log_request(request, body_bytes, seconds, ended)

    def add_range(
        self, subject: Subject, user_agent: str, request_id: str, body_bytes: int, seconds: float = 0.0
    ) -> None:
        """Add a complete 206 to the summary of its subject and user agent."""
        summary = self._summary
        if (
            summary is None
            or (summary.subject is not subject and summary.subject != subject)
            or summary.user_agent != user_agent
        ):
            self._flush()
            started = self._log.clock.seconds() - seconds
            self._summary = summary = _Summary(subject, user_agent, request_id, started)
            if self._timer is None:
                self._timer = self._log.clock.callLater(SUMMARY_SECONDS, self._expire)
        summary.ranges += 1
        summary.body_bytes += body_bytes

    def close(self) -> None:
        """Log the pending summary: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def _expire(self) -> None:
        self._timer = None
        self._flush()

    def _flush(self) -> None:
        summary, self._summary = self._summary, None
        if summary is None:
            return
        subject = summary.subject
        self._write(
            f"{summary.ranges} ranges of {subject.infra_env} {subject.kind} to {self._client},"
            f" {summary.body_bytes} bytes",
            summary,
            "GET",
            {
                "status": _PARTIAL_CONTENT,
                "ranges": summary.ranges,
                "bytes": summary.body_bytes,
                "seconds": round(self._log.clock.seconds() - summary.started, 6),
                "ended": COMPLETE,
            },
        )

    def _log_request(self, request: Exchange, body_bytes: int, seconds: float, ended: str) -> None:
        subject, method, status, requested = request.subject, request.method, request.status, request.range
        self._write(
            f"{method} {subject.handler} {subject.infra_env} {subject.kind} to {self._client}:"
            f" {status}, {body_bytes} bytes, {ended}",
            request,
            method,
            {
                "range": requested if requested and has_range_characters(requested) else "",
                "status": status,
                "code": request.code,
                "bytes": body_bytes,
                "seconds": round(seconds, 6),
                "ended": ended,
            },
        )

    def _write(
        self, text: str, logged: Exchange | _Summary, method: str, more: dict[str, str | int | float]
    ) -> None:
        subject = logged.subject
        self._log.write(
            text,
            {
                "id": logged.request_id or new_request_id(),
                "client": self._client,
                "method": method,
                "user_agent": logged.user_agent[:_MAX_USER_AGENT],
                "handler": subject.handler,
                "infra_env": subject.infra_env,
                "kind": subject.kind,
                **more,
            },
        )
