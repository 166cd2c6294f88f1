"""The interface between connections and the request handler."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - attrs resolves annotations
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from image_service.server.http.ranges import format_int_range
from image_service.server.http.request_id import new_request_id, valid_request_id
from image_service.server.http.response import STATUS_LINES, Problem, Response
from image_service.server.http.routes import names_probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.defer import Deferred

    from image_service.core.extents import Extent
    from image_service.server.http.head import Request
    from image_service.server.transport.admission.slot_queue import Slot

Message: TypeAlias = "tuple[bytes, tuple[Extent, ...]]"
"""Rendered field lines or a rendered head, and the content."""


@attrs.frozen
class Subject:
    """The subject of a request, for log and metrics; holds no credential.

    Args:
        handler: the route's pattern; empty if there is no route.
    """

    handler: str = ""
    infra_env: str = ""
    kind: str = ""

    @property
    def is_public(self) -> bool:
        """True for a file that is the same for all clients: of a base image or of a stream."""
        return not self.infra_env


NO_SUBJECT = Subject()


class RangeResponder(Protocol):
    """Responds to the further ranges of a mount: requests that differ from an earlier one in Range alone."""

    @property
    def is_remote(self) -> bool:
        """True if bytes of the latest response may be absent from the local disk."""

    @property
    def record_sent(self) -> Callable[[int, int], None]:
        """A function that records that all of a response was sent: its first offset, and its bytes.

        It is always the same one.
        """

    def respond_to_range(self, first: int, last: int, now: float) -> Message | None:
        """Return fields and content of the 206 for an int-range.

        Args:
            first: offset of the first byte.
            last: offset of the last byte.

        Returns:
            None: the request handler has to respond, because the range is unsatisfiable or the mount may have
            changed.
        """

    def hold_mount(self) -> Callable[[], None]:
        """Keep the mount in progress until the returned function is called."""

    def follow(self, first: int, last: int) -> Callable[[int], None]:
        """Return a function that records how many bytes of a response were sent since it began."""

    def with_fields(self, more: bytes) -> RangeResponder:
        """Return a responder whose responses have more fields."""


@attrs.frozen(eq=False)
class PreparedResponse:
    """A response as the request handler returns it.

    Args:
        subject: for the log.
        on_sent: called with the bytes of content that were sent so far: when the response has ended, and
            maybe before.
        on_end: called once when the response has ended, whether all of it was sent, some, or nothing.
        ranges: responds to further ranges; None: the request handler has to.
        warnings: reasons for which a boot may fail although the response is right; for the list of failures.
        is_current: returns True if an equal request at a time (the clock's seconds) has an equal response,
            which may then be sent again: its `on_end` does nothing. None: only the request handler knows.
    """

    response: Response
    subject: Subject = NO_SUBJECT
    on_sent: Callable[[int], None] = attrs.field(default=lambda _: None, kw_only=True)
    on_end: Callable[[], None] = lambda: None
    ranges: RangeResponder | None = None
    is_current: Callable[[float], bool] | None = None
    warnings: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    def with_fields(self, more: bytes) -> PreparedResponse:
        """Return the same with more field lines, in further ranges too."""
        response = attrs.evolve(self.response, fields=self.response.fields + more)
        ranges = None if self.ranges is None else self.ranges.with_fields(more)
        return attrs.evolve(self, response=response, ranges=ranges)


@attrs.define(eq=False)
class Exchange:
    """A request in progress.

    Args:
        method: as sent; empty if the head could not be read.
        request: None: it was invalid.
        started: when its head had arrived, the clock's seconds.
        int_range: first-pos and last-pos, if it is a further range.
        prepared: the response; None: there is none yet.
        request_id: empty: none was needed.
        keep_alive: True if the response allows another request on the connection.
        is_repeated: True if it is a HEAD like the one before it, and has its response.
        is_over: True once its end is recorded.
        invalid_target: of an invalid request, if it has one.
    """

    method: str
    request: Request | None
    started: float
    int_range: tuple[int, int] | None = None
    prepared: PreparedResponse | None = None
    request_id: str = ""
    keep_alive: bool = False
    slot: Slot | None = None
    is_repeated: bool = False
    is_over: bool = False
    invalid_target: str = attrs.field(default="", repr=False)

    @property
    def subject(self) -> Subject:
        """The subject of the request, as far as is known."""
        return self.prepared.subject if self.prepared is not None else NO_SUBJECT

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return self.prepared.response.status if self.prepared is not None else 0

    @property
    def problem(self) -> Problem | None:
        """The error, if the response is one."""
        return self.prepared.response.problem if self.prepared is not None else None

    def record_sent(self, body_bytes: int) -> None:
        """Record how many bytes of content were sent so far, unless they are those of an error."""
        if self.prepared is not None and self.problem is None:
            self.prepared.on_sent(max(0, body_bytes))

    @property
    def is_probe(self) -> bool:
        """True for a request of an orchestrator or of monitoring."""
        return self.request is not None and names_probe(self.request.target)

    @property
    def target(self) -> str:
        """The request target as sent, which may hold a credential; empty if there is none."""
        return self.request.target if self.request is not None else self.invalid_target

    @property
    def user_agent(self) -> str:
        """The request's User-Agent as sent; empty if it has none."""
        return self.headers.get("user-agent", "")

    @property
    def range(self) -> str:
        """The value of the request's Range field; empty if it has none."""
        if self.int_range is not None:
            return format_int_range(*self.int_range)
        return self.headers.get("range", "")

    @property
    def headers(self) -> Mapping[str, str]:
        """The fields of the request, by lower-case name; none if it was invalid."""
        return self.request.headers if self.request is not None else {}

    def render_head(self, response: Response, date_line: bytes, *, needs_id: bool) -> bytes:
        """Render status line and fields, with the empty line.

        Args:
            needs_id: give a request without an identifier a new one.
        """
        requested_id = self.headers.get("x-request-id")
        if response.problem is not None:
            self.request_id = response.problem.request_id
        elif requested_id is not None or needs_id:
            self.request_id = valid_request_id(requested_id) or (new_request_id() if needs_id else "")
        return STATUS_LINES[response.status] + date_line + response.fields + self.render_last_lines()

    def render_last_lines(self) -> bytes:
        """Render the fields that belong to the connection and the request, and the empty line."""
        lines = b""
        if not self.keep_alive:
            lines = b"Connection: close\r\n"
        elif self.request is not None and self.request.http_1_0:
            lines = b"Connection: keep-alive\r\n"
        if self.request_id:
            return b"%bX-Request-ID: %b\r\n\r\n" % (lines, self.request_id.encode("ascii"))
        return lines + b"\r\n"


class RequestHandler(Protocol):
    """Responds to requests; never raises and never fails."""

    def handle(
        self, request: Request, address: str, *, overloaded: bool
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Return the response to a request, at once if it is known.

        Args:
            address: the client's, as trusted proxies report it.
            overloaded: the limit on connections is reached: only probes and OPTIONS are served.
        """
