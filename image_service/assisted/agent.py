"""The HTTP agent below treq: what treq does for a browser's kind of client is undone here.

treq asks for gzip and decodes it without a bound, and keeps cookies in one jar for all callers. Content
that comes as it is has one size, so the limit on it holds before anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import attrs
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import implementer

from image_service.assisted.body import discard
from image_service.assisted.failures import upstream_error

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.web.iweb import IBodyProducer, IResponse


@implementer(IAgent)
@attrs.frozen
class PlainAgent:
    """An agent whose answers hold neither cookies nor a content coding.

    Args:
        agent: makes the requests.
    """

    _agent: IAgent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Issue a request that asks for content as it is.

        Args:
            method: HTTP method.
            uri: absolute.
            headers: ``Accept-Encoding`` is replaced.
            bodyProducer: the request's body.

        Returns:
            the response; ``UpstreamError`` where its content is coded all the same.
        """
        plain = headers.copy() if headers is not None else Headers()
        plain.setRawHeaders(b"Accept-Encoding", [b"identity"])
        asked: Deferred[IResponse] = self._agent.request(method, uri, plain, bodyProducer)
        return asked.addCallback(_plain)


def _plain(response: IResponse) -> IResponse | Deferred[IResponse]:
    response.headers.removeHeader(b"Set-Cookie")
    codings = b",".join(response.headers.getRawHeaders(b"Content-Encoding", []))
    if codings.strip().lower() in {b"", b"identity"}:
        return response
    return discard(response).addCallback(_refuse)


def _refuse(_: None) -> NoReturn:
    raise upstream_error("the answer has a content coding, which was not asked for")
