"""The client of assisted-service: each question is answered whole, or with an error of ours.

Cancellation: a question may be cancelled at any step (name look-up, connect, handshake, waiting for the
head, in the middle of the body) and then fails with ``CancelledError``. Its connection is closed and not
given back to the pool, so no late answer can be taken for that to another question, and nothing of it
stays behind. A deadline is such a cancellation, told as 504. Questions share nothing but the pool.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import quote

import attrs
from hyperlink import EncodedURL
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

from image_service.assisted.agent import PlainAgent
from image_service.assisted.answers import Ignition, InfraEnv, read_infra_env
from image_service.assisted.body import collect
from image_service.assisted.failures import (
    CLIENT_ERRORS,
    failure,
    refusal,
    upstream_error,
    upstream_timeout,
)
from image_service.assisted.server import Server
from image_service.assisted.tls import https_policy
from image_service.coreos.ignition import check_ignition
from image_service.errors import (
    ConfigurationError,
    Forbidden,
    IgnitionNotJson,
    ImageServiceError,
    NotFound,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.formats.initrd import is_initrd
from image_service.http.dates import parse_http_date
from image_service.http.problem import status_of
from image_service.images.reference import CredentialScheme

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treq.response import _Response
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure

    from image_service.images.reference import Credentials, Kind

T = TypeVar("T")

IGNITION_LIMIT_BYTES = 8 * 1024 * 1024
INFRA_ENV_LIMIT_BYTES = 16 * 1024 * 1024  # it repeats the config's override, as an escaped string
RAMDISK_LIMIT_BYTES = 64 * 1024 * 1024
THREAD_BYTES = 128 * 1024
"""JSON larger than this is read in a thread: a tree of 8 MiB takes the parser more than a second."""
API_KEY_PARAMETER = "api_key"
CREDENTIAL_FIELDS = {
    CredentialScheme.IMAGE_TOKEN: "Image-Token",
    CredentialScheme.AUTHORIZATION: "Authorization",
}
"""The header field that carries a credential; API keys are a query parameter."""
_API = ("api", "assisted-install", "v2", "infra-envs")
_CACHED_CONNECTIONS = 4
_CACHED_SECONDS = 60  # below the idle timeout of the usual proxies, which close without notice
_CLOSE_SECONDS = 1.0
_OK = 200
_NO_CONTENT = 204


class CallKind(enum.Enum):
    """What a call asks for."""

    IGNITION = "ignition"
    INFRA_ENV = "infra-env"
    RAMDISK = "ramdisk"


class CallOutcome(enum.Enum):
    """The result of a call, for the metrics."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    REFUSED = "refused"
    FAILED = "failed"
    TIMEOUT = "timeout"


_OUTCOMES = (
    (Unauthorized, CallOutcome.UNAUTHORIZED),
    (Forbidden, CallOutcome.FORBIDDEN),
    (NotFound, CallOutcome.NOT_FOUND),
    (UpstreamTimeout, CallOutcome.TIMEOUT),
    (UpstreamError, CallOutcome.FAILED),
)


@attrs.frozen
class _Question:
    """One GET: its kind; what for, in words; where; what the answer may hold; whether 204 is one."""

    kind: CallKind
    what: str
    path: tuple[str, ...]
    limit_bytes: int
    parameters: tuple[tuple[str, str], ...] = ()
    optional: bool = False


@attrs.frozen
class _Answer:
    headers: Headers
    body: bytes = attrs.field(repr=False)


class AssistedService:
    """assisted-service, as far as images need it.

    Args:
        reactor: connects, looks up names and tells the time; only a whole reactor does all three.
        base_url: scheme, host and port, with a path where a proxy has put one before the API.
        ca_file: PEM certificates to trust beside the system's; None: the system's alone.
        insecure: verify no certificate.
        upstream_timeout_seconds: for a whole question.
        connect_timeout_seconds: for a TCP connection.
        silence_timeout_seconds: without a byte of the answer.
        concurrency: questions at a time; more of them wait for their turn.
        count: is told of each question that was answered, or failed: its kind, how, and in how many seconds.

    Raises:
        ConfigurationError: ``base_url`` is no http or https URL with a host, or ``ca_file`` is unusable.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - three deadlines, each with a default
        self,
        reactor: PosixReactorBase,
        base_url: str,
        *,
        ca_file: Path | None = None,
        insecure: bool = False,
        upstream_timeout_seconds: float = 30.0,
        connect_timeout_seconds: float = 10.0,
        silence_timeout_seconds: float = 20.0,
        concurrency: int = 32,
        count: Callable[[str, str, float], None] = lambda *_: None,
    ) -> None:
        self._reactor = reactor
        self._infra_envs = _parse(base_url).child(*_API)
        self._timeout_seconds = upstream_timeout_seconds
        self._silence_seconds = silence_timeout_seconds
        self._count = count
        self._turns = DeferredSemaphore(concurrency)
        self._in_flight: set[Deferred[_Answer]] = set()
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = _CACHED_CONNECTIONS
        self._pool.cachedConnectionTimeout = _CACHED_SECONDS
        policy = https_policy(ca_file, insecure=insecure)
        uri = URI.fromBytes(self._infra_envs.to_text().encode("ascii"))
        server = Server(reactor, uri, policy, connect_timeout_seconds)
        self._http = HTTPClient(PlainAgent(Agent.usingEndpointFactory(reactor, server, self._pool)))

    async def ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> Ignition:
        """Ask for the Ignition config.

        Args:
            infra_env_id: whose.
            discovery_iso_type: the ISO that it is for; None: not for an ISO.
            credentials: passed on.

        Returns:
            the config and its date.

        Raises:
            ImageServiceError: assisted-service refused (401, 403, 404, 409, …), failed (502) or was too
                slow (504); or what it sent is no Ignition config (502, 422).
        """
        kind = () if discovery_iso_type is None else (("discovery_iso_type", discovery_iso_type.value),)
        question = _Question(
            CallKind.IGNITION,
            f"Ignition config of infra-env {infra_env_id}",
            (infra_env_id, "downloads", "files"),
            IGNITION_LIMIT_BYTES,
            (("file_name", "discovery.ign"), *kind),
        )
        answer = await self._ask(question, credentials)
        await self._read(_check, answer.body)
        (modified, *_) = answer.headers.getRawHeaders(b"Last-Modified", [b""])
        return Ignition(answer.body, parse_http_date(modified.decode("latin-1")))

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Ask for the infra-env itself.

        Args:
            infra_env_id: which.
            credentials: passed on.

        Returns:
            what matters to images of it.

        Raises:
            ImageServiceError: as for ``ignition``.
        """
        question = _Question(
            CallKind.INFRA_ENV, f"infra-env {infra_env_id}", (infra_env_id,), INFRA_ENV_LIMIT_BYTES
        )
        return await self._read(read_infra_env, (await self._ask(question, credentials)).body)

    async def ramdisk(self, infra_env_id: str, credentials: Credentials | None) -> bytes | None:
        """Ask for the ramdisk that a minimal image needs before it can fetch the rest of itself.

        Args:
            infra_env_id: whose.
            credentials: passed on.

        Returns:
            a compressed archive, to be handed to the kernel as it is; None: there is nothing to hand over.

        Raises:
            ImageServiceError: as for ``ignition``; 502 for what the kernel would not unpack.
        """
        what = f"ramdisk of infra-env {infra_env_id}"
        path = (infra_env_id, "downloads", "minimal-initrd")
        question = _Question(CallKind.RAMDISK, what, path, RAMDISK_LIMIT_BYTES, optional=True)
        ramdisk = (await self._ask(question, credentials)).body
        if ramdisk and not is_initrd(ramdisk):
            raise upstream_error(f"the {what}, {len(ramdisk)} bytes, is no archive of gzip, xz, zstd or cpio")
        return ramdisk or None

    async def close(self) -> None:
        """Cancel the questions in flight and close the connections; waits a second for these at most."""
        for asked in tuple(self._in_flight):
            asked.cancel()
        closed: Deferred[None] = self._pool.closeCachedConnections()
        await closed.addTimeout(_CLOSE_SECONDS, self._reactor, lambda *_: None)

    async def _read(self, read: Callable[[bytes], T], body: bytes) -> T:
        """Read JSON; in a thread where that takes a while."""
        if len(body) <= THREAD_BYTES:
            return read(body)
        return await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), read, body)

    async def _ask(self, question: _Question, credentials: Credentials | None) -> _Answer:
        too_slow = _tell_timeout(f"{question.what} took more than {self._timeout_seconds:g} s")
        exchange = Deferred.fromCoroutine(self._exchange_in_turn(question, credentials))
        asked = _cancellable(exchange.addTimeout(self._timeout_seconds, self._reactor, too_slow))
        self._in_flight.add(asked)
        began = self._reactor.seconds()
        try:
            answer = await asked
        except ImageServiceError as error:
            self._count(question.kind.value, _outcome(error).value, self._reactor.seconds() - began)
            self._log.info("{detail}", detail=error.detail, status=status_of(error), code=error.code)
            raise error from None  # what it was raised in the wake of may quote the answer
        else:
            self._count(question.kind.value, CallOutcome.OK.value, self._reactor.seconds() - began)
            return answer
        finally:
            self._in_flight.discard(asked)

    async def _exchange_in_turn(self, question: _Question, credentials: Credentials | None) -> _Answer:
        async with self._turns:
            return await self._exchange(question, credentials)

    async def _exchange(self, question: _Question, credentials: Credentials | None) -> _Answer:
        what = question.what
        silent = _tell_timeout(f"no answer within {self._silence_seconds:g} s for {what}")
        try:
            response = await self._request(question, credentials).addTimeout(
                self._silence_seconds, self._reactor, silent
            )
            # The body of a refusal is read too: only so does its connection go back to the pool.
            body = await collect(response, what, question.limit_bytes, self._silence_seconds, self._reactor)
        except CLIENT_ERRORS as error:
            raise failure(error, what) from None  # its text may quote the answer
        if response.code != _OK and not (question.optional and response.code == _NO_CONTENT):
            raise refusal(response.code, response.headers, what)
        return _Answer(response.headers, body)

    def _request(self, question: _Question, credentials: Credentials | None) -> Deferred[_Response]:
        parameters, headers = list(question.parameters), Headers({"User-Agent": ["image-service"]})
        if credentials is not None:
            _pass_on(credentials, parameters, headers)
        return self._http.get(
            self._infra_envs.child(*(quote(segment, safe="") for segment in question.path)),
            params=parameters,
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,  # type: ignore[arg-type]  # treq's own sum of interfaces
        )


class _Uri(EncodedURL):
    """A URL of ASCII alone. treq has every URL made one, and there IPv6 addresses are taken for names."""

    def to_uri(self) -> EncodedURL:
        return self


def _parse(base_url: str) -> EncodedURL:
    try:
        url = _Uri.from_text(base_url if base_url.isascii() else "")  # of the class that it is called on
    except ValueError:
        url = _Uri()
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment or url.userinfo:
        msg = "the URL of assisted-service must be http or https with a host, without user, query or fragment"
        raise ConfigurationError(msg)
    return url.replace(path=[segment for segment in url.path if segment])


def _pass_on(credentials: Credentials, parameters: list[tuple[str, str]], headers: Headers) -> None:
    """Put the credential where assisted-service looks for one of its kind."""
    if credentials.scheme is CredentialScheme.API_KEY:
        parameters.append((API_KEY_PARAMETER, credentials.secret))
        return
    field = CREDENTIAL_FIELDS[credentials.scheme]
    if not (credentials.secret.isascii() and credentials.secret.isprintable()):
        detail = f"{field} holds characters that no field value may have"
        raise Unauthorized(detail, fields=(("WWW-Authenticate", "Bearer"),))
    headers.setRawHeaders(field, [credentials.secret])


def _check(config: bytes) -> None:
    try:
        check_ignition(config)
    except IgnitionNotJson:
        raise upstream_error(f"the Ignition config of {len(config)} bytes is not JSON") from None


def _outcome(error: ImageServiceError) -> CallOutcome:
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), CallOutcome.REFUSED)


def _cancellable(work: Deferred[T]) -> Deferred[T]:
    """Tell a cancellation as such; the work may call it something else, such as a name without address."""

    def cancel(result: Deferred[T]) -> None:
        result.errback(CancelledError())
        work.cancel()

    def finish(outcome: T | Failure) -> None:
        if not result.called:
            result.callback(outcome)  # a Failure goes to the errbacks

    result: Deferred[T] = Deferred(cancel)
    work.addBoth(finish)
    return result


def _tell_timeout(detail: str) -> Callable[[object, float], NoReturn]:
    def tell(_: object, __: float) -> NoReturn:
        raise upstream_timeout(detail)

    return tell
