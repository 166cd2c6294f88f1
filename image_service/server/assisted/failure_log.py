"""Failed calls: a log line each, at most so many of one cause; and the health of the server."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger, LogLevel

from image_service.common.concurrency.rate_limiter import RateLimiter
from image_service.core.errors import IgnitionInvalid
from image_service.server.http.problem import status_of
from image_service.server.http.redaction import redact_detail

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.errors import ImageServiceError
    from image_service.server.assisted.calls import Attempt
    from image_service.server.assisted.server import Server

_NUMBER = re.compile("[0-9]+")
_SERVER_ERRORS = 500


class FailureLog:
    """Logs the failures of calls to one server.

    Args:
        server: is named in each line.
    """

    _log = Logger()

    def __init__(self, server: Server, clock: IReactorTime) -> None:
        self._server = server
        self._limiter: RateLimiter[tuple[str, str]] = RateLimiter(clock)

    def add(self, error: ImageServiceError, attempt: Attempt) -> None:
        """Log a failure, or count it for the next line of its cause.

        A refusal (401, 403, 404, …) is not the fault of anybody who runs a service: its level is info.
        """
        suppressed = self._limiter.admit(_cause_of(error, attempt))
        if suppressed is None:
            return
        status = status_of(error)
        is_fault = status >= _SERVER_ERRORS or isinstance(error, IgnitionInvalid)
        about = [
            str(self._server),
            f"its X-Request-ID {attempt.answer_id}" * bool(attempt.answer_id),
            f"for request {attempt.request_id}" * bool(attempt.request_id),
            f"{suppressed} more like this were not logged" * bool(suppressed),
        ]
        self._log.emit(
            LogLevel.warn if is_fault else LogLevel.info,
            "{detail} ({about})",
            detail=error.detail,
            about=", ".join(filter(None, about)),
            upstream=self._server.url.authority(),
            status=status,
            code=error.code,
            id=attempt.request_id,
            upstream_id=attempt.answer_id,
            suppressed=suppressed,
        )


def _cause_of(error: ImageServiceError, attempt: Attempt) -> tuple[str, str]:
    """Return a key that equal failures of different infra-envs share."""
    return error.code, _NUMBER.sub("", error.detail.replace(attempt.call.resource, ""))


@attrs.define
class UpstreamHealth:
    """The last answer of assisted-service, and its last failure.

    Args:
        url: of assisted-service; has no credentials.
        now: the present time, in UTC.

    Attributes:
        answered_at: time of the last answer; None: there was none.
        failed_at: time of the last failure; None: there was none.
        failing_since: time of the first failure since the last answer; None: there was none.
        failure: the reason of the last failure; empty: there was none.
        failure_status: that a client of an image gets for it; None: there was none.
        failures: number of calls that failed since the last answer.
    """

    url: str
    _now: Callable[[], datetime] = lambda: datetime.now(UTC)
    answered_at: datetime | None = attrs.field(default=None, init=False)
    failed_at: datetime | None = attrs.field(default=None, init=False)
    failing_since: datetime | None = attrs.field(default=None, init=False)
    failure: str = attrs.field(default="", init=False)
    failure_status: int | None = attrs.field(default=None, init=False)
    failures: int = attrs.field(default=0, init=False)

    def record(self, error: ImageServiceError | None) -> None:
        """Record the end of a call; an error of a status below 500 (401, 404, …) is an answer, too."""
        if error is None or status_of(error) < _SERVER_ERRORS:
            self.answered_at, self.failing_since, self.failures = self._now(), None, 0
            return
        self.failed_at, self.failure = self._now(), redact_detail(error.detail)
        self.failing_since = self.failing_since or self.failed_at
        self.failure_status = status_of(error)
        self.failures += 1
