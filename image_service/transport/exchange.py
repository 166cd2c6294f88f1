"""The words that the connection and the application share."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - attrs resolves annotations
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.http.response import STATUS_LINES, Response
from image_service.transport.access_log import NO_SUBJECT, Subject, new_request_id, valid_request_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.defer import Deferred

    from image_service.http.head import Request
    from image_service.transport.admission import Slot


class Lease(Protocol):
    """What a request for a range was found to mean, for those that differ from it in their range alone."""

    def answer(self, first: int, last: int, now: float) -> Answer | None:
        """Answer a further range.

        Args:
            first: offset of the first byte.
            last: offset of the last one.
            now: the clock's seconds.

        Returns:
            the answer, which is the same object each time: good until the next one is asked for. None: the
            lease is over, or there is no such range: the application is to be asked.
        """

    def keep_sending(self) -> None:
        """Note that the answer takes more than the turn of its request."""

    def end(self) -> None:
        """Note that the answer is over, as its ``ended`` does."""

    def with_fields(self, more: bytes) -> Lease:
        """Give one whose answers have more fields.

        Args:
            more: rendered field lines.
        """


@attrs.define(eq=False)
class Answer:
    """A response and what it is about; nobody but a lease changes it.

    Args:
        response: what is sent.
        subject: for the log.
        ended: called once when the answer is over, whether all of it was sent, some or nothing.
        lease: answers further ranges; None: they are to be asked for as this one was.
    """

    response: Response
    subject: Subject = NO_SUBJECT
    ended: Callable[[], None] = lambda: None
    lease: Lease | None = None


@attrs.define(eq=False)
class Exchange:
    """A request that is being answered.

    Args:
        method: as sent; empty where the head could not be read.
        request: None: it was no sound one.
        began: the clock's seconds.
        part: the first and the last byte that are asked for, where the request is one of another range.
        answer: None: not yet.
        request_id: empty: none was needed.
        keep_alive: whether the answer says that another request may follow.
        slot: what it has for a download.
    """

    method: str
    request: Request | None
    began: float
    part: tuple[int, int] | None = None
    answer: Answer | None = None
    request_id: str = ""
    keep_alive: bool = False
    slot: Slot | None = None

    @property
    def subject(self) -> Subject:
        """What it is about, as far as is known."""
        return self.answer.subject if self.answer is not None else NO_SUBJECT

    @property
    def handler(self) -> str:
        """Of the subject; empty until there is an answer."""
        return self.answer.subject.handler if self.answer is not None else ""

    @property
    def status(self) -> int:
        """Of the answer; 0: there is none."""
        return self.answer.response.status if self.answer is not None else 0

    @property
    def code(self) -> str:
        """The error's, if the answer is one."""
        return self.answer.response.what if self.answer is not None else ""

    @property
    def user_agent(self) -> str:
        """As sent."""
        return self.request.headers.get("user-agent", "") if self.request is not None else ""

    @property
    def range(self) -> str:
        """The Range field."""
        return self._headers.get("range", "") if self.part is None else "bytes={}-{}".format(*self.part)

    @property
    def _headers(self) -> Mapping[str, str]:
        return self.request.headers if self.request is not None else {}

    def head(self, response: Response, date_line: bytes, *, needs_id: bool) -> bytes:
        """Render status line and fields.

        Args:
            response: what is answered.
            date_line: the Date field.
            needs_id: a request that brought no identifier gets one.

        Returns:
            the head, with the empty line behind it.
        """
        wanted_id = self._headers.get("x-request-id")
        if wanted_id is not None or needs_id:
            self.request_id = valid_request_id(wanted_id) or (new_request_id() if needs_id else "")
        return STATUS_LINES[response.status] + date_line + response.fields + self.last_lines()

    def last_lines(self) -> bytes:
        """Render the fields that belong to the connection and the request, and the empty line."""
        lines = []
        if not self.keep_alive:
            lines.append(b"Connection: close\r\n")
        elif self.request is not None and self.request.http_1_0:
            lines.append(b"Connection: keep-alive\r\n")
        if self.request_id:
            lines.append(b"X-Request-ID: %b\r\n" % self.request_id.encode("ascii"))
        return b"".join([*lines, b"\r\n"])


class Application(Protocol):
    """Answers requests; never raises and never fails."""

    def handle(self, request: Request, address: str, *, overloaded: bool) -> Answer | Deferred[Answer]:
        """Answer a request.

        Args:
            request: a sound one.
            address: of the connection's other side.
            overloaded: the limit on connections is reached: images are refused, probes and OPTIONS answered.

        Returns:
            the answer, at once where it is known.
        """
