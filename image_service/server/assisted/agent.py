"""The agent below treq: one server, uncoded content, no cookies.

treq requests gzip and decodes it without a limit, and keeps cookies in one jar for all callers. Here content
arrives uncoded, so the size limit holds before anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.web.iweb import IBodyProducer, IResponse

CODING_FIELD = "X-Unrequested-Content-Encoding"
"""The field of a response that has the coding of its content, which nobody has requested."""


@implementer(IAgent)
class UncodedAgent:
    """Requests uncoded content; hides codings from treq, which would decode them, and cookies."""

    def __init__(self, agent: IAgent) -> None:
        self._agent = agent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Send a request for uncoded content; a coding that the content has is in `CODING_FIELD`."""
        uncoded = headers.copy() if headers is not None else Headers()
        uncoded.setRawHeaders(b"Accept-Encoding", [b"identity"])
        response: Deferred[IResponse] = self._agent.request(method, uri, uncoded, bodyProducer)
        return response.addCallback(_hide_fields)


def _hide_fields(response: IResponse) -> IResponse:
    fields = response.headers
    fields.removeHeader(b"Set-Cookie")
    fields.removeHeader(CODING_FIELD)
    codings = b",".join(fields.getRawHeaders(b"Content-Encoding", []))
    fields.removeHeader(b"Content-Encoding")
    if codings.strip().lower() not in {b"", b"identity"}:
        fields.setRawHeaders(CODING_FIELD, [codings])
    return response
