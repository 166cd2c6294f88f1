"""The request handler: images, digests, published files of streams, and probes, by their routes."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.concurrency.lru import LruCache
from image_service.concurrency.single_flight import shielded
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
from image_service.serving.image_request import parse_image_request
from image_service.serving.range_stream import RangeStream, RepeatedHead
from image_service.snapshots.model import ImageRequest, ReadMode
from image_service.transport.access_log import NO_SUBJECT, Subject
from image_service.transport.exchange import PreparedResponse

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
    from image_service.snapshots.model import ComposedVersion

_log = Logger()

MAX_CACHED_ROUTES = 4096
_WITH_CONTENT = frozenset({200, 206})
Page: TypeAlias = tuple[bytes, str]
"""Content and its media type."""
_Handled: TypeAlias = "PreparedResponse | Deferred[PreparedResponse]"


def _no_streams(_: StreamRef) -> BootImage:
    raise NotFound("there are no streams")


@attrs.frozen(eq=False)
class _CachedRoute:
    """The result of parsing a target, for a client."""

    reader: Reader
    subject: Subject


class ImageRequestHandler:
    """Handles the requests of one listener.

    Args:
        images: finds or composes images.
        digests: computes their digests.
        ready: returns True if images can be served.
        base_path: the path of the service's base URL.
        serves_isos: False: ISOs are served by another listener.
        cors: which pages of other origins may read the responses; None: none.
        proxies: networks of the proxies that are trusted to name the client's address.
        metrics: renders the metrics.
        base_images: renders the base images' states as JSON.
        mirror: returns a published file of a stream.
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
        self._mirror = mirror
        self._probes: dict[Probe, Callable[[], Page | Deferred[Page]]] = {
            Probe.LIVE: lambda: (b"ok\n", "text/plain"),
            Probe.HEALTH: self._check_ready,
            Probe.METRICS: metrics,
            Probe.IMAGES: lambda: (base_images(), "application/json"),
        }
        # By a digest of target, Authorization and client address: the first two may hold credentials.
        self._cached_routes: LruCache[bytes, _CachedRoute] = LruCache(MAX_CACHED_ROUTES)

    def handle(self, request: Request, address: str, *, overloaded: bool) -> _Handled:
        """Return the response to a request (see `exchange.RequestHandler`)."""
        try:
            prepared = self._handle(request, address, overloaded=overloaded)
        except Exception:  # noqa: BLE001 - any error: the client gets a response, and the log the cause
            _log.failure("unexpected error while handling a request")
            prepared = _refuse(request, _unexpected())
        if self._cors is None:
            return prepared
        fields = self._cors.fields(request.headers)
        if isinstance(prepared, PreparedResponse):
            return prepared.with_fields(fields)
        return prepared.addCallback(lambda prepared: prepared.with_fields(fields))

    def _handle(self, request: Request, address: str, *, overloaded: bool) -> _Handled:
        headers = request.headers
        client = client_address(address, headers, self._proxies)
        key = sha256(f"{request.target}\n{headers.get('authorization', '')}\n{client}".encode()).digest()
        cached = self._cached_routes.get(key)
        if cached is not None and not overloaded and request.method != "OPTIONS":
            image_request = parse_image_request(request, cached.reader)
            composed = self._images.get_cached(image_request)
            if composed is not None:
                return self._prepare(request, image_request, composed, cached.subject)
        return self._handle_new(request, client, key, overloaded=overloaded)

    def _handle_new(self, request: Request, client: str, key: bytes, *, overloaded: bool) -> _Handled:
        """Handle a request by its route."""
        if request.method == "OPTIONS":
            return self._handle_options(request)
        try:
            route = parse_route(request.target, request.headers, self._base_path)
            self._check_listener(route)
            if isinstance(route, Probe):
                return self._handle_probe(request, route)
        except ImageServiceError as error:
            return _refuse(request, error)
        if overloaded:
            overload = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return _refuse(request, overload, _subject(route))
        if isinstance(route, MirrorRoute):
            return self._handle_mirror(request, route)
        return Deferred.fromCoroutine(self._handle_image(request, route, client, key))

    def _check_listener(self, route: Route) -> None:
        # Published files of streams are pristine: they hold nothing to hide from the network.
        if self._serves_isos or not isinstance(route, ImageRoute) or not route.ref.needs_customization:
            return
        if route.ref.kind is None or route.ref.kind.is_iso:
            raise NotFound("ISOs are served by the other listener of this service only")

    # Images.

    async def _handle_image(
        self, request: Request, route: ImageRoute, client: str, key: bytes
    ) -> PreparedResponse:
        subject = _subject(route)
        failure: ImageServiceError
        try:
            reader = Reader(client, route.credentials, route.ref)
            if route.is_digest:
                return await self._handle_digest(request, ImageRequest(reader), subject)
            image_request = parse_image_request(request, reader)
            composed = await self._images.get(image_request)
            subject = attrs.evolve(subject, kind=_kind(composed.version.ref))
            self._cached_routes[key] = _CachedRoute(reader, subject)
            prepared = self._prepare(request, image_request, composed, subject)
            return prepared if isinstance(prepared, PreparedResponse) else await prepared
        except UnknownBaseImage as error:
            failure = InvalidParameter(error.detail) if route.version_is_parameter else error
        except ImageServiceError as error:
            failure = error
        except Exception:  # noqa: BLE001 - any error: the client gets a response, and the log the cause
            _log.failure(
                "unexpected error while composing an image of {infra_env}",
                infra_env=subject.infra_env or route.ref,
            )
            failure = _unexpected()
        return _refuse(request, failure, subject)

    def _prepare(
        self, request: Request, image_request: ImageRequest, composed: ComposedVersion, subject: Subject
    ) -> _Handled:
        representation = composed.representation
        digest = self._digests.get_cached(representation.image.etag)
        more = b"" if digest is None else render_fields(("Repr-Digest", repr_digest(digest)))
        headers = self._without_unproven_range(request.headers, image_request, composed)
        response = representation.respond(request.method, headers, more)
        if response.status not in _WITH_CONTENT:
            return PreparedResponse(response, subject)
        if request.method == "HEAD":
            self._images.retain(image_request, composed)
            image = ref(representation.image)
            repeated = RepeatedHead(self._images, self._digests, image_request, image, digest)
            return PreparedResponse(response, subject, is_current=repeated.is_current)
        mount = self._images.record_mount(image_request, composed)
        ranges = None
        if image_request.mode is ReadMode.RESUME:
            fields = representation.part_fields(request.headers, more)
            size = representation.image.size
            ranges = RangeStream(self._images, image_request.reader, mount, size, fields)
        prepared = PreparedResponse(
            response, subject, partial(self._images.mounts.end_response, mount), ranges
        )
        return prepared if mount.saving is None else shielded(mount.saving).addCallback(lambda _: prepared)

    def _without_unproven_range(
        self, headers: Mapping[str, str], image_request: ImageRequest, composed: ComposedVersion
    ) -> Mapping[str, str]:
        """Return the fields without a Range whose date proves nothing.

        A date is a weak validator (RFC 9110 section 8.8.2.2): another snapshot may have the same one.
        """
        if image_request.date is None or composed.representation.image.is_public:
            return headers
        if self._images.mounts.find(image_request.reader) == composed.version:
            return headers
        return {name: value for name, value in headers.items() if name != "range"}

    async def _handle_digest(
        self, request: Request, image_request: ImageRequest, subject: Subject
    ) -> PreparedResponse:
        deadline = self._digests.deadline()
        image = (await self._images.get(image_request)).representation.image
        digest = await self._digests.get(image, deadline)
        page = checksum_line(digest, image.file_name), "text/plain"
        return _prepare_page(request, subject, page, ("Image-ETag", image.etag))

    # Other resources.

    def _handle_options(self, request: Request) -> PreparedResponse:
        if self._cors is not None and self._cors.is_preflight(request.headers):
            return PreparedResponse(self._cors.preflight(request.headers))
        return PreparedResponse(Response(204, render_fields(("Allow", ", ".join(ALLOWED_METHODS)))))

    def _handle_mirror(self, request: Request, route: MirrorRoute) -> PreparedResponse:
        subject = _subject(route)
        try:
            representation = Representation(self._mirror(route.ref))
        except ImageServiceError as error:
            return _refuse(request, error, subject)
        return PreparedResponse(representation.respond(request.method, request.headers), subject)

    def _handle_probe(self, request: Request, probe: Probe) -> _Handled:
        subject = Subject(probe.value)
        try:
            page = self._probes[probe]()
        except ImageServiceError as error:
            return _refuse(request, error, subject)
        prepare = partial(_prepare_page, request, subject)
        return page.addCallback(prepare) if isinstance(page, Deferred) else prepare(page)

    def _check_ready(self) -> Page:
        if not self._ready():
            detail = "base images are not ready yet, or this service is shutting down"
            raise Unavailable(detail, retry_after_seconds=1)
        return b"ok\n", "text/plain"


def _unexpected() -> ImageServiceError:
    return ImageServiceError("the image could not be composed; see the log of this service")


def _prepare_page(request: Request, subject: Subject, page: Page, *more: tuple[str, str]) -> PreparedResponse:
    body, content_type = page
    fields = render_fields(
        ("Content-Type", content_type),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *more,
    )
    if request.method == "HEAD":
        return PreparedResponse(Response(200, fields), subject)
    return PreparedResponse(Response(200, fields, (Literal(body),), len(body)), subject)


def _refuse(request: Request, error: ImageServiceError, subject: Subject = NO_SUBJECT) -> PreparedResponse:
    return PreparedResponse(problem(error, head_only=request.method == "HEAD"), subject)


def _subject(route: ImageRoute | MirrorRoute) -> Subject:
    """Return what a request is about, as far as the request says."""
    if isinstance(route, MirrorRoute):
        return Subject(route.handler)
    infra_env = route.ref.infra_env_id if route.ref.needs_customization else ""
    return Subject(route.handler, infra_env, _kind(route.ref))


def _kind(ref: Ref) -> str:
    if not ref.needs_customization:
        return ref.artifact.value
    return ref.kind.value if ref.kind else ""
