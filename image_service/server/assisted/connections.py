"""Connections to assisted-service: requests are sent, and whole responses are read.

A call with credentials has a connection of its own. Else a server, or a proxy before it, that sends a second
response late would have it taken for the answer to the next question, which may be another tenant's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from treq.client import HTTPClient
from twisted.web.client import Agent, HTTPConnectionPool, ProxyAgent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface import implementer

from image_service.common.http.response import codings_of
from image_service.server.assisted.body import abort_response, read_body
from image_service.server.assisted.calls import add_credentials
from image_service.server.assisted.failures import (
    CLIENT_ERRORS,
    error_of_exception,
    upstream_error,
    upstream_timeout,
)
from image_service.server.assisted.responses import CompleteResponse
from image_service.server.assisted.server import ServerEndpoint
from image_service.server.http.request_id import valid_request_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from treq.response import _Response
    from twisted.internet.defer import Deferred
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.web.iweb import IBodyProducer, IResponse

    from image_service.core.images.reference import Credentials
    from image_service.server.assisted.calls import Attempt
    from image_service.server.assisted.server import Server

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 20.0
_INFRA_ENVS = ("api", "assisted-install", "v2", "infra-envs")
_IDLE_CONNECTIONS = 4
_IDLE_SECONDS = 60  # below the idle timeout of the usual proxies, which close without notice
_CLOSE_SECONDS = 1.0
_BAD_REQUEST = 400
_CODING_FIELD = "X-Unrequested-Content-Encoding"
"""The field of a response that has the coding of its content, which nobody has requested."""
_EXPECTS_TLS = re.compile(rb"\bHTTPS\b")  # in the 400 of Go's server, and of nginx


class ApiConnections:
    """Connections to one server.

    Args:
        reactor: connects, resolves names and measures time; only a whole reactor does all three.
        silence_timeout_seconds: without a byte of the response.
    """

    def __init__(
        self,
        reactor: PosixReactorBase,
        server: Server,
        connect_timeout_seconds: float = CONNECT_SECONDS,
        silence_timeout_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._reactor = reactor
        self._server = server
        self._infra_envs = server.url.child(*_INFRA_ENVS)
        self._silence_seconds = silence_timeout_seconds
        self._pool = HTTPConnectionPool(reactor)  # of calls without credentials
        self._pool.maxPersistentPerHost = _IDLE_CONNECTIONS
        self._pool.cachedConnectionTimeout = _IDLE_SECONDS
        endpoint = ServerEndpoint(reactor, server, connect_timeout_seconds)

        def make_client(pool: HTTPConnectionPool) -> HTTPClient:
            if server.proxy is not None and server.is_plain:
                return HTTPClient(_UncodedAgent(ProxyAgent(endpoint, reactor, pool)))
            return HTTPClient(_UncodedAgent(Agent.usingEndpointFactory(reactor, endpoint, pool)))

        self._shared = make_client(self._pool)
        self._single = make_client(HTTPConnectionPool(reactor, persistent=False))

    async def exchange(self, attempt: Attempt, credentials: Credentials | None) -> CompleteResponse:
        """Send a call's request, and return the response, whatever its status.

        Raises:
            ImageServiceError: there is no whole response.
        """
        call, silence_seconds = attempt.call, self._silence_seconds
        parameters, headers = list(call.parameters), Headers({"User-Agent": ["image-service"]})
        proxy = self._server.proxy
        if proxy is not None and proxy.authorization and self._server.is_plain:
            headers.setRawHeaders("Proxy-Authorization", [proxy.authorization])
        if credentials is not None:
            add_credentials(credentials, parameters, headers)
        http = self._shared if credentials is None else self._single
        request: Deferred[_Response] = http.get(
            self._infra_envs.child(*(quote(segment, safe="") for segment in call.path)),
            params=parameters,
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,  # type: ignore[arg-type]  # treq's own sum of interfaces
        )
        silent = raise_timeout(f"no answer within {silence_seconds:g} s for {call.resource}; is it running?")
        try:
            response = await request.addTimeout(silence_seconds, self._reactor, silent)
        except CLIENT_ERRORS as error:  # its text may quote the response
            raise error_of_exception(error, call.resource, is_plain=self._server.is_plain) from None
        (answer_id, *_) = response.headers.getRawHeaders(b"X-Request-ID", [b""])
        attempt.answer_id = valid_request_id(answer_id.decode("latin-1"))
        if response.headers.hasHeader(_CODING_FIELD):
            coded = f"{call.resource} has a content coding, which was not requested"
            await abort_response(response, upstream_error(coded))
        # The body of an error is read too: only then does its connection return to the pool.
        body = await read_body(
            response,
            call.resource,
            call.limit_bytes,
            silence_seconds,
            self._reactor,
            may_end_early=response.code >= _BAD_REQUEST,
        )
        if self._server.is_plain and response.code == _BAD_REQUEST and _EXPECTS_TLS.search(body):
            raise upstream_error(
                f"no answer for {call.resource}: it speaks HTTPS; set ASSISTED_SERVICE_SCHEME=https"
            )
        return CompleteResponse(call.resource, response.headers, body, response.code)

    async def close(self) -> None:
        """Close the connections that are open, for which it waits a second at most."""
        closed: Deferred[None] = self._pool.closeCachedConnections()
        await closed.addTimeout(_CLOSE_SECONDS, self._reactor, lambda *_: None)


def raise_timeout(detail: str) -> Callable[[object, float], NoReturn]:
    """Return a function for ``addTimeout`` that raises ``UpstreamTimeout``."""

    def on_timeout(_: object, __: float) -> NoReturn:
        raise upstream_timeout(detail)

    return on_timeout


@implementer(IAgent)
class _UncodedAgent:
    """Requests uncoded content; hides codings from treq, which would decode them, and cookies.

    treq requests gzip and decodes it without a limit, and keeps cookies in one jar for all callers. Here
    content arrives uncoded, so the size limit holds before anything is decoded.
    """

    def __init__(self, agent: IAgent) -> None:
        self._agent = agent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Send a request for uncoded content; a coding that the content has is in `_CODING_FIELD`."""
        uncoded = headers.copy() if headers is not None else Headers()
        uncoded.setRawHeaders(b"Accept-Encoding", [b"identity"])
        response: Deferred[IResponse] = self._agent.request(method, uri, uncoded, bodyProducer)
        return response.addCallback(_hide_fields)


def _hide_fields(response: IResponse) -> IResponse:
    fields = response.headers
    fields.removeHeader(b"Set-Cookie")
    fields.removeHeader(_CODING_FIELD)
    codings = codings_of(",".join(fields.getRawHeaders("Content-Encoding", [])))
    fields.removeHeader(b"Content-Encoding")
    if codings:
        fields.setRawHeaders(_CODING_FIELD, [codings])
    return response
