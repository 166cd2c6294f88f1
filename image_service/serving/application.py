"""Answers requests: probes, and images by their routes."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.concurrency.lru import LruCache
from image_service.concurrency.single_flight import detached
from image_service.errors import (
    ImageServiceError,
    InvalidParameter,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.http.forwarded import client_address
from image_service.http.head import ALLOWED_METHODS
from image_service.http.problem import problem
from image_service.http.respond import Representation
from image_service.http.response import Response, render_fields
from image_service.http.routes import ImageRoute, MirrorRoute, Probe, parse_route
from image_service.images.extents import Literal
from image_service.images.reference import Reader
from image_service.serving.digests import checksum_line, repr_digest
from image_service.serving.lease import ImageLease
from image_service.snapshots.versions import ImageRequest, ReadMode
from image_service.transport.access_log import NO_SUBJECT, Subject
from image_service.transport.exchange import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from image_service.http.cors import Cors
    from image_service.http.forwarded import Network
    from image_service.http.head import Request
    from image_service.http.routes import Route
    from image_service.images.boot_image import BootImage
    from image_service.images.reference import Ref, StreamRef
    from image_service.serving.digests import Digests
    from image_service.snapshots.boot_images import BootImages
    from image_service.snapshots.versions import Composed

_log = Logger()

MAX_KNOWN = 4096
_WITH_CONTENT = frozenset({200, 206})
_ETAG = re.compile(r'(?:W/)?"[^"]*"')  # a weak one equals none of ours (RFC 9110 section 8.8.3.2)
_VALIDATORS = frozenset({"if-match", "if-range", "if-none-match", "if-modified-since", "if-unmodified-since"})
Page: TypeAlias = tuple[bytes, str]
"""Content and its type."""
_Asker: TypeAlias = tuple[str, str | None, str]
"""Target, Authorization and the client's address: all that a request's meaning depends on."""


def _no_streams(_: StreamRef) -> BootImage:
    raise NotFound("there are no streams")


@attrs.frozen(eq=False)
class _Known:
    """What a request was found to mean."""

    reader: Reader
    subject: Subject


class Application:
    """The service as a client of one listener sees it.

    Args:
        images: finds or makes images.
        digests: takes their digests.
        ready: whether images can be served.
        base_path: the path of the service's base URL.
        serves_isos: else they are said to be elsewhere.
        cors: which pages of other origins may read the answers; None: none.
        proxies: networks of the proxies whose word on a client's address is taken.
        metrics: renders them, with their content type, at once or later.
        base_images: tells of them, in JSON.
        mirror: returns a published file of a stream, as ``Mirror.find_boot_image``.
    """

    def __init__(  # noqa: PLR0913 - what one listener shares with the others, and what it does not
        self,
        images: BootImages,
        digests: Digests,
        ready: Callable[[], bool],
        base_path: str = "",
        *,
        serves_isos: bool = True,
        cors: Cors | None = None,
        proxies: Collection[Network] = (),
        metrics: Callable[[], Page | Deferred[Page]] = lambda: (b"", "text/plain"),
        base_images: Callable[[], bytes] = lambda: b"{}",
        mirror: Callable[[StreamRef], BootImage] = _no_streams,
    ) -> None:
        self._images = images
        self._digests = digests
        self._ready = ready
        self._base_path = base_path
        self._serves_isos = serves_isos
        self._cors = cors
        self._proxies = proxies
        self._metrics = metrics
        self._base_images = base_images
        self._mirror = mirror
        # The second range of a mount is one look-up: no route is parsed, nothing is waited for.
        self._known: LruCache[_Asker, _Known] = LruCache(MAX_KNOWN)

    def handle(self, request: Request, address: str, *, overloaded: bool) -> Answer | Deferred[Answer]:
        """Answer a request; never raises and never fails.

        Args:
            request: a sound one.
            address: of the connection's other side.
            overloaded: only probes and OPTIONS are answered, the rest refused.

        Returns:
            the answer, at once where it is known.
        """
        try:
            answer = self._handle(request, address, overloaded=overloaded)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            _log.failure("a request could not be answered")
            answer = _refusal(request, _unforeseen())
        if self._cors is None:
            return answer
        fields = self._cors.fields(request.headers)
        if isinstance(answer, Answer):
            return _with(fields, answer)
        return answer.addCallback(partial(_with, fields))

    def _handle(self, request: Request, address: str, *, overloaded: bool) -> Answer | Deferred[Answer]:
        headers = request.headers
        client = client_address(address, headers, self._proxies)
        asker = (request.target, headers.get("authorization"), client)
        known = self._known.get(asker)
        if known is not None and not overloaded and request.method != "OPTIONS":
            want = _want(request, known.reader)
            composed = self._images.at_once(want)
            if composed is not None:
                return self._answer(request, want, composed, known.subject)
        return self._find_out(request, asker, overloaded=overloaded)

    def _find_out(self, request: Request, asker: _Asker, *, overloaded: bool) -> Answer | Deferred[Answer]:
        """Answer what was not asked before."""
        headers = request.headers
        if request.method == "OPTIONS":
            return self._answer_options(request)
        try:
            route = parse_route(request.target, headers, self._base_path)
            self._check_listener(route)
        except ImageServiceError as error:
            return _refusal(request, error)
        if isinstance(route, Probe):
            return self._answer_probe(request, route)
        if overloaded:
            crowd = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return _refusal(request, crowd, _subject(route))
        if isinstance(route, MirrorRoute):
            return self._answer_mirror(request, route)
        return Deferred.fromCoroutine(self._answer_image(request, route, asker))

    def _check_listener(self, route: Route) -> None:
        # What is published of streams is pristine: there is nothing in it to be hidden from the network.
        if self._serves_isos or not isinstance(route, ImageRoute) or not route.ref.needs_customization:
            return
        if route.ref.kind is None or route.ref.kind.is_iso:
            raise NotFound("ISOs are served by the other listener of this service alone")

    async def _answer_image(self, request: Request, route: ImageRoute, asker: _Asker) -> Answer:
        subject = _subject(route)
        failure: ImageServiceError
        try:
            _, _, client = asker
            want = _want(request, Reader(client, route.credentials, route.ref))
            if route.is_digest:
                return await self._answer_digest(request, ImageRequest(want.reader), subject)
            composed = await self._images.get(want)
            subject = attrs.evolve(subject, kind=_kind(composed.version.ref))
            self._known[asker] = _Known(want.reader, subject)
            answer = self._answer(request, want, composed, subject)
            return answer if isinstance(answer, Answer) else await answer
        except UnknownBaseImage as error:
            failure = InvalidParameter(error.detail) if route.version_is_parameter else error
        except ImageServiceError as error:
            failure = error
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            _log.failure("no image could be made for {infra_env}", infra_env=subject.infra_env or route.ref)
            failure = _unforeseen()
        return _refusal(request, failure, subject)

    def _answer(
        self, request: Request, want: ImageRequest, composed: Composed, subject: Subject
    ) -> Answer | Deferred[Answer]:
        representation = composed.representation
        digest = self._digests.get_cached(representation.image.etag)
        more = b"" if digest is None else render_fields(("Repr-Digest", repr_digest(digest)))
        response = representation.respond(request.method, self._headers(request, want, composed), more)
        if response.status not in _WITH_CONTENT:
            return Answer(response, subject)
        if request.method == "HEAD":
            self._images.shows(want, composed)
            return Answer(response, subject)
        mount = self._images.reads(want, composed)
        ended = partial(self._images.mounts.end, mount)
        lease = None
        if want.reading is ReadMode.CONTINUING:
            fields = representation.part_fields(request.headers, more)
            size = representation.image.size
            lease = ImageLease(self._images, want.reader, mount, size, fields, subject)
        answer = Answer(response, subject, ended, lease)
        return answer if mount.noting is None else detached(mount.noting).addCallback(lambda _: answer)

    def _headers(self, request: Request, want: ImageRequest, composed: Composed) -> Mapping[str, str]:
        """The request's fields, without a range that goes with a date which proves nothing.

        A date is a weak validator here (RFC 9110 section 8.8.2.2): another snapshot may have the same.
        """
        headers = request.headers
        if want.date is None or composed.representation.image.is_public:
            return headers
        if self._images.mounts.find(want.reader) == composed.version:
            return headers
        return {name: value for name, value in headers.items() if name != "range"}

    async def _answer_digest(self, request: Request, want: ImageRequest, subject: Subject) -> Answer:
        deadline = self._digests.deadline()
        image = (await self._images.get(want)).representation.image
        digest = await self._digests.get(image, deadline)
        line = checksum_line(digest, image.file_name)
        return _text(request, subject, line, ("Image-ETag", image.etag))

    def _answer_options(self, request: Request) -> Answer:
        if self._cors is not None and self._cors.is_preflight(request.headers):
            return Answer(self._cors.preflight(request.headers))
        return Answer(Response(204, render_fields(("Allow", ", ".join(ALLOWED_METHODS)))))

    def _answer_mirror(self, request: Request, route: MirrorRoute) -> Answer:
        try:
            image = self._mirror(route.ref)
        except ImageServiceError as error:
            return _refusal(request, error, _subject(route))
        response = Representation(image).respond(request.method, request.headers)
        return Answer(response, _subject(route))

    def _answer_probe(self, request: Request, probe: Probe) -> Answer | Deferred[Answer]:
        subject = Subject(probe.value)
        if probe is Probe.METRICS:
            page = self._metrics()
            answer = partial(_page, request, subject)
            return page.addCallback(answer) if isinstance(page, Deferred) else answer(page)
        if probe is Probe.IMAGES:
            return _text(request, subject, self._base_images(), content_type="application/json")
        if probe is Probe.HEALTH and not self._ready():
            detail = "base images are not ready yet, or this service is going away"
            error = Unavailable(detail, retry_after_seconds=1)
            return _refusal(request, error, subject)
        return _text(request, subject, b"ok\n")


def _page(request: Request, subject: Subject, page: Page) -> Answer:
    body, content_type = page
    return _text(request, subject, body, content_type=content_type)


def _want(request: Request, reader: Reader) -> ImageRequest:
    """What a request for an image wants, by RFC 9110 sections 13 and 14."""
    headers = request.headers
    if request.method != "GET" or "range" not in headers:
        return ImageRequest(reader)
    if _VALIDATORS.isdisjoint(headers):
        return ImageRequest(reader, ReadMode.CONTINUING)
    named = f"{headers.get('if-match', '')}, {headers.get('if-range', '')}"
    return ImageRequest(reader, ReadMode.NAMED, tuple(_ETAG.findall(named)), _date(headers))


def _date(headers: Mapping[str, str]) -> str | None:
    """The date that a request for a range knows its version by, if it is by a date."""
    validator = headers.get("if-range")
    if validator is None and "if-match" not in headers:  # RFC 9110 section 13.1.4: else it is ignored
        validator = headers.get("if-unmodified-since")
    return None if validator is None or '"' in validator else validator


def _unforeseen() -> ImageServiceError:
    return ImageServiceError("the image could not be made; the service's log tells why")


def _text(
    request: Request,
    subject: Subject,
    body: bytes,
    *more: tuple[str, str],
    content_type: str = "text/plain",
) -> Answer:
    fields = render_fields(
        ("Content-Type", content_type),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *more,
    )
    if request.method == "HEAD":
        return Answer(Response(200, fields), subject)
    return Answer(Response(200, fields, (Literal(body),), len(body)), subject)


def _with(fields: bytes, answer: Answer) -> Answer:
    response, lease = answer.response, answer.lease
    return attrs.evolve(
        answer,
        response=attrs.evolve(response, fields=response.fields + fields),
        lease=None if lease is None else lease.with_fields(fields),
    )


def _refusal(request: Request, error: ImageServiceError, subject: Subject = NO_SUBJECT) -> Answer:
    return Answer(problem(error, head_only=request.method == "HEAD"), subject)


def _subject(route: ImageRoute | MirrorRoute) -> Subject:
    """What is asked for, as far as the request says."""
    if isinstance(route, MirrorRoute):
        return Subject(route.handler)
    infra_env = route.ref.infra_env_id if route.ref.needs_customization else ""
    return Subject(route.handler, infra_env, _kind(route.ref))


def _kind(ref: Ref) -> str:
    if not ref.needs_customization:
        return ref.artifact.value
    return ref.kind.value if ref.kind else ""
