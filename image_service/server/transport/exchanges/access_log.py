"""The access log: one line per request, but one per ten seconds for ranges, and equal HEADs, of a connection.

Each line has an identifier, that of the request's X-Request-ID or a new one. A failed request has one line,
at warning or error, with its path and the reason; the response has the same identifier.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from twisted.logger import ILogObserver, LogLevel, globalLogPublisher

from image_service.server.http.ranges import has_range_characters
from image_service.server.http.redaction import redact_detail, redact_target
from image_service.server.http.request_id import new_request_id
from image_service.server.http.routes import Probe
from image_service.server.transport.sending.observer import AbortReason

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.http.head import Request
    from image_service.server.transport.exchanges.exchange import Exchange, Subject

SUMMARY_SECONDS = 10
COMPLETE = "complete"
Level: TypeAlias = Any
"""A level of `twisted.logger`, which has no type for it."""

_MAX_USER_AGENT = 200  # characters
_PARTIAL_CONTENT = 206
_INTERNAL_SERVER_ERROR = 500
_NO_FAULTS_OF_OURS = frozenset({501, 505})  # unknown methods and versions
_FAULTS = frozenset(
    {
        AbortReason.DISK_FAILED,
        AbortReason.ORIGIN_FAILED,
        AbortReason.SHORT_READ,
        AbortReason.INTERNAL_ERROR,
    }
)
_UNLOGGED = frozenset(probe.value for probe in (Probe.HEALTH, Probe.LIVE, Probe.METRICS))


@attrs.frozen
class AccessLog:
    """Options and counts that the logs of all connections share.

    Args:
        clock: for durations and the timer of summaries.
        each_range: log each range by a line of its own (`LOG_RANGES=each`).
    """

    clock: IReactorTime
    each_range: bool = False
    observer: ILogObserver = attrs.field(default=globalLogPublisher, repr=False)

    def has_own_line(self, exchange: Exchange, status: int) -> bool:
        """Return True if complete responses of this status to such requests are logged by a line each."""
        return self.each_range or not (exchange.is_repeated or status == _PARTIAL_CONTENT)

    def write(self, level: Level, text: str, fields: dict[str, str | int | float]) -> None:
        """Log an event.

        It is made here, with its text and its fields apart: Twisted's `Logger` and formatter take longer than
        everything else about a HEAD.
        """
        self.observer(
            {
                "log_level": level,
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
    status: int
    requests: int = 0
    body_bytes: int = 0


@attrs.frozen(eq=False)
class _Described:
    """What the lines of equal requests have in common, such as those of a monitor's HEADs.

    Args:
        detail: of an error; None: there was none.
        fields: in the order of the line; those that differ are empty.
    """

    request: Request | None
    subject: Subject
    status: int
    what: str
    detail: str | None
    level: Level
    fields: dict[str, str | int | float]

    def is_of(self, exchange: Exchange) -> bool:
        """Return True if an exchange is of the very same request, with such a response."""
        prepared = exchange.prepared
        return (
            prepared is not None
            and exchange.request is self.request
            and exchange.int_range is None
            and prepared.subject is self.subject
            and prepared.response.status == self.status
            and prepared.response.problem is None
        )


class ConnectionLog:
    """The lines of one connection."""

    __slots__ = ("_client", "_latest", "_log", "_summary", "_timer")

    def __init__(self, log: AccessLog, client: str) -> None:
        self._log = log
        self._client = client
        self._latest: _Described | None = None
        self._summary: _Summary | None = None
        self._timer: IDelayedCall | None = None

    def add(
        self,
        request: Exchange,
        body_bytes: int,
        seconds: float,
        ended: str,
        abort: AbortReason | None = None,
    ) -> None:
        """Log a finished request, or add it to the summary of requests like it.

        Args:
            body_bytes: bytes of content that the kernel accepted.
            seconds: from the head's arrival to the end.
            ended: `COMPLETE`, or the reason of the abort in words.
            abort: why it was not sent to its end; None: it was.
        """
        if ended == COMPLETE and not self._log.has_own_line(request, request.status):
            like = request.subject, request.user_agent, request.request_id
            self.add_to_summary(*like, body_bytes, seconds, request.status)
        else:
            self._log_request(request, body_bytes, seconds, ended, abort)

    def add_to_summary(  # noqa: PLR0913, PLR0917 - an object for each range would cost more than this
        self,
        subject: Subject,
        user_agent: str,
        request_id: str,
        body_bytes: int,
        seconds: float = 0.0,
        status: int = _PARTIAL_CONTENT,
    ) -> None:
        """Add a complete 206, or the response to a repeated HEAD, to a summary of subject and user agent."""
        summary = self._summary
        if (
            summary is None
            or summary.status != status
            or (summary.subject is not subject and summary.subject != subject)
            or summary.user_agent != user_agent
        ):
            self._flush()
            started = self._log.clock.seconds() - seconds
            self._summary = summary = _Summary(subject, user_agent, request_id, started, status)
            if self._timer is None:
                self._timer = self._log.clock.callLater(SUMMARY_SECONDS, self._expire)
        summary.requests += 1
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
        subject, number = summary.subject, summary.requests
        method, what = ("GET", "range") if summary.status == _PARTIAL_CONTENT else ("HEAD", "HEAD")
        image = _join(subject.infra_env, subject.kind) or subject.handler
        seconds = round(self._log.clock.seconds() - summary.started, 6)
        request_id = summary.request_id or new_request_id()
        self._log.write(
            LogLevel.info,
            f"{number} {what}{'s' * (number > 1)} of {image} to {self._client},"
            f" {summary.body_bytes} bytes in {seconds:.3f} s (id {request_id})",
            {
                **self._common_fields(request_id, method, summary),
                "status": summary.status,
                f"{what.lower()}s": number,
                "bytes": summary.body_bytes,
                "seconds": seconds,
                "ended": COMPLETE,
            },
        )

    def _log_request(
        self, exchange: Exchange, body_bytes: int, seconds: float, ended: str, abort: AbortReason | None
    ) -> None:
        latest = self._latest
        if latest is None or not latest.is_of(exchange):
            latest = self._describe(exchange)
            self._latest = latest if latest.detail is None else None
        status, request_id = latest.status, exchange.request_id or new_request_id()
        how = latest.detail or (
            f"{status}, {body_bytes} bytes in {seconds:.3f} s"
            if status
            else f"no response in {seconds:.3f} s"
        )
        fields = {
            **latest.fields,
            "id": request_id,
            "bytes": body_bytes,
            "seconds": round(seconds, 6),
            "ended": ended,
        }
        level = latest.level
        if abort is not None:
            how, level = f"{how}, {ended}", _level(exchange, abort)
            fields["code"] = fields["code"] or abort.value
        self._log.write(level, f"{latest.what} to {self._client}: {how} (id {request_id})", fields)

    def _describe(self, exchange: Exchange) -> _Described:
        subject, problem, requested = exchange.subject, exchange.problem, exchange.range
        what = _join(exchange.method, subject.handler, subject.infra_env, subject.kind)
        fields: dict[str, str | int | float] = {
            **self._common_fields("", exchange.method, exchange),
            "range": requested if requested and has_range_characters(requested) else "",
            "status": exchange.status,
            "code": problem.code if problem is not None else "",
            "bytes": 0,
            "seconds": 0.0,
            "ended": "",
        }
        if problem is not None or not subject.handler:
            path = redact_target(exchange.target)
            what = _join(exchange.method, path) or "invalid request"
            fields["path"] = path
        detail = None
        if problem is not None:
            fields["detail"] = redact_detail(problem.detail)
            detail = f"{exchange.status} {problem.code}: {fields['detail']}"
        level = _level(exchange, None)
        return _Described(exchange.request, subject, exchange.status, what, detail, level, fields)

    def _common_fields(
        self, request_id: str, method: str, logged: Exchange | _Summary
    ) -> dict[str, str | int | float]:
        subject = logged.subject
        return {
            "id": request_id,
            "client": self._client,
            "method": method,
            "user_agent": logged.user_agent[:_MAX_USER_AGENT],
            "handler": subject.handler,
            "infra_env": subject.infra_env,
            "kind": subject.kind,
        }


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


def _level(request: Exchange, abort: AbortReason | None) -> Level:
    """Return the level of a request's line.

    Error: this service or assisted-service has failed. Warning: the client has, or a limit is reached.
    Debug: a probe that has not failed.
    """
    problem = request.problem
    if abort in _FAULTS:
        return LogLevel.error
    if problem is not None:
        is_fault = request.status >= _INTERNAL_SERVER_ERROR and not problem.is_temporary
        return LogLevel.error if is_fault and request.status not in _NO_FAULTS_OF_OURS else LogLevel.warn
    if abort is not None:
        return LogLevel.info if abort is AbortReason.CLIENT_GONE else LogLevel.warn
    return LogLevel.debug if request.subject.handler in _UNLOGGED else LogLevel.info
