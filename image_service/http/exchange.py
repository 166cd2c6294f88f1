"""The words that the connection and the application share."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - attrs resolves annotations
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.http.access_log import Entry, known_request_id, new_request_id
from image_service.http.response import STATUS_LINES, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.internet.defer import Deferred

    from image_service.http.admission import Slot
    from image_service.http.head import Request


@attrs.frozen
class Subject:
    """What an answer is about, for the log: nothing in it is a credential.

    Args:
        handler: the route's pattern; empty where no route was found.
        infra_env: its identifier, if any.
        kind: kind of image, if any.
    """

    handler: str = ""
    infra_env: str = ""
    kind: str = ""


NOTHING = Subject()


def _nothing() -> None:
    """For answers whose end is of no interest."""


@attrs.frozen(eq=False)
class Answer:
    """A response and what it is about.

    Args:
        response: what is sent.
        subject: for the log.
        ended: called once when the answer is over, whether all of it was sent, some or nothing.
    """

    response: Response
    subject: Subject = NOTHING
    ended: Callable[[], None] = _nothing


@attrs.define(eq=False)
class Exchange:
    """A request that is being answered.

    Args:
        method: as sent; empty where the head could not be read.
        request: None: it was no sound one.
        began: the clock's seconds.
        answer: None: not yet.
        request_id: empty: none was needed.
        keep_alive: whether the answer says that another request may follow.
        slot: what it has for a download.
    """

    method: str
    request: Request | None
    began: float
    answer: Answer | None = None
    request_id: str = ""
    keep_alive: bool = False
    slot: Slot | None = None

    @property
    def handler(self) -> str:
        """Of the subject; empty until there is an answer."""
        return self.answer.subject.handler if self.answer is not None else ""

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
        lines = [STATUS_LINES[response.status], date_line, response.fields]
        if not self.keep_alive:
            lines.append(b"Connection: close\r\n")
        elif self.request is not None and self.request.http_1_0:
            lines.append(b"Connection: keep-alive\r\n")
        self.request_id = known_request_id(self._headers.get("x-request-id"))
        if not self.request_id and needs_id:
            self.request_id = new_request_id()
        if self.request_id:
            lines.append(b"X-Request-ID: %b\r\n" % self.request_id.encode("ascii"))
        lines.append(b"\r\n")
        return b"".join(lines)

    def entry(self, body_bytes: int, seconds: float, ended: str) -> Entry:
        """Tell how it went.

        Args:
            body_bytes: what the sender says that the transport took.
            seconds: how long it took.
            ended: ``complete``, or why not.
        """
        answer = self.answer
        return Entry(
            request_id=self.request_id,
            method=self.method,
            user_agent=self._headers.get("user-agent", ""),
            range=self._headers.get("range", ""),
            subject=answer.subject if answer is not None else NOTHING,
            status=answer.response.status if answer is not None else 0,
            code=answer.response.what if answer is not None else "",
            body_bytes=max(0, body_bytes) if answer is not None else 0,
            seconds=seconds,
            ended=ended,
        )


class Application(Protocol):
    """Answers requests; never raises and never fails."""

    def handle(self, request: Request, address: str, *, crowded: bool) -> Answer | Deferred[Answer]:
        """Answer a request.

        Args:
            request: a sound one.
            address: of the connection's other side.
            crowded: the limit on connections is reached: images are refused, probes and OPTIONS answered.

        Returns:
            the answer, at once where it is known.
        """
