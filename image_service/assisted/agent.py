"""The HTTP agent below treq: without content codings and cookies.

treq requests gzip and decodes it without a limit, and keeps cookies in one jar for all callers. Content
without a coding has one size, so its limit holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import attrs
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import implementer

from image_service.assisted.body import discard_body
from image_service.assisted.failures import upstream_error

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.web.iweb import IBodyProducer, IResponse


@implementer(IAgent)
@attrs.frozen
class PlainAgent:
    """An agent whose responses have neither cookies nor a content coding; `agent` sends the requests."""

    _agent: IAgent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Send a request with ``Accept-Encoding: identity``; UpstreamError if the content is coded anyway."""
        plain = headers.copy() if headers is not None else Headers()
        plain.setRawHeaders(b"Accept-Encoding", [b"identity"])
        requested: Deferred[IResponse] = self._agent.request(method, uri, plain, bodyProducer)
        return requested.addCallback(_plain)


def _plain(response: IResponse) -> IResponse | Deferred[IResponse]:
    response.headers.removeHeader(b"Set-Cookie")
    codings = b",".join(response.headers.getRawHeaders(b"Content-Encoding", []))
    if codings.strip().lower() in {b"", b"identity"}:
        return response
    return discard_body(response).addCallback(_refuse)


def _refuse(_: None) -> NoReturn:
    raise upstream_error("the answer has a content coding, which was not asked for")
