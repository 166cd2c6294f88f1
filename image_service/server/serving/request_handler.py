"""The request handler: finds the route of a request, and the response by its kind."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import (
    ImageServiceError,
    InvalidParameter,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.core.images.reference import Kind, Reader
from image_service.server.http.head import ALLOWED_METHODS
from image_service.server.http.problem import problem
from image_service.server.http.request_id import new_request_id, valid_request_id
from image_service.server.http.respond import Representation
from image_service.server.http.response import Response, render_fields
from image_service.server.http.routes import (
    CHECKSUMS_FILE,
    REGISTRY_HANDLER,
    ChecksumsRoute,
    ImageDocument,
    ImageRoute,
    LinkRoute,
    MirrorRoute,
    Probe,
    PublicDocument,
    parse_route,
)
from image_service.server.serving.image_responses import ImageAccess, parse_image_request
from image_service.server.serving.pages import prepare_page
from image_service.server.serving.registry_routes import parse_registry_route
from image_service.server.transport.exchanges.exchange import NO_SUBJECT, PreparedResponse, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.reference import Ref, StreamRef
    from image_service.server.http.cors import Cors
    from image_service.server.http.head import Request
    from image_service.server.http.routes import Route
    from image_service.server.links.links import Links
    from image_service.server.serving.image_responses import ImageResponses
    from image_service.server.serving.ipxe_scripts import IpxeScripts
    from image_service.server.serving.pages import Pages
    from image_service.server.serving.registry import Registry
    from image_service.server.serving.registry_routes import RegistryRoute
    from image_service.server.snapshots.image_finder import ImageFinder

_log = Logger()

ROUTES_BYTES = 2 * 1024 * 1024
"""Of all cached routes, for some 700 clients with tokens. They hold the credentials, which a new mount needs,
in clear: so there are no more than serve clients that open a connection for each range."""
_NAMES = {ImageDocument.DIGEST: "digest", ImageDocument.STATEMENT: "statement"}
_Handled: TypeAlias = "PreparedResponse | Deferred[PreparedResponse]"


def _no_streams(_: StreamRef) -> BootImage:
    raise NotFound("there are no streams")


@attrs.define(eq=False)
class _Handling:
    """A request while it is handled. Its refusal names the route and subject known by then.

    Args:
        address: the client's.
        key: of the cached route; a digest of target, Authorization and address, as the first two may hold
            credentials.
    """

    request: Request
    address: str
    key: bytes = b""
    route: Route | None = None
    subject: Subject = NO_SUBJECT

    def identify(self) -> str:
        """Return the X-Request-ID; a request without a valid one gets one, so that logs can name it."""
        headers = self.request.headers
        request_id = valid_request_id(headers.get("x-request-id")) or new_request_id()
        self.request = attrs.evolve(self.request, headers={**headers, "x-request-id": request_id})
        return request_id


@attrs.define(eq=False)
class ImageRequestHandler:
    """Handles the requests of one listener.

    Args:
        base_path: the path of the service's base URL.
        withheld: kinds of image that only another listener serves.
        cors: which pages of other origins may read the responses; None: none.
        mirror: returns a published file of a stream.
        registry: serves images as artifacts; None: there are no such routes.
    """

    _images: ImageFinder
    _responses: ImageResponses
    _pages: Pages
    _base_path: str = ""
    _links: Links = attrs.field(kw_only=True)
    _scripts: IpxeScripts = attrs.field(kw_only=True)
    _withheld: Collection[Kind] = attrs.field(default=(), kw_only=True)
    _cors: Cors | None = attrs.field(default=None, kw_only=True)
    _mirror: Callable[[StreamRef], BootImage] = attrs.field(default=_no_streams, kw_only=True)
    _registry: Registry | None = attrs.field(default=None, kw_only=True)
    _cached_routes: LruCache[bytes, ImageAccess] = attrs.field(
        init=False, factory=lambda: LruCache(ROUTES_BYTES, lambda access: access.held_bytes)
    )

    @property
    def routes_bytes(self) -> int:
        """The memory that the cached routes take."""
        return self._cached_routes.held_bytes

    def handle(self, request: Request, address: str, *, overloaded: bool) -> _Handled:
        """Return the response to a request (see `exchange.RequestHandler`)."""
        handling = _Handling(request, address)
        fields = b"" if self._cors is None else self._cors.fields(request.headers)
        try:
            prepared = self._handle(handling, overloaded=overloaded)
        except Exception:  # noqa: BLE001 - any error: the client gets a response
            prepared = _refuse(handling, Failure())
        if isinstance(prepared, Deferred):
            answered = prepared.addErrback(partial(_refuse, handling))
            return answered.addCallback(lambda prepared: prepared.with_fields(fields)) if fields else answered
        return prepared.with_fields(fields) if fields else prepared

    def _handle(self, handling: _Handling, *, overloaded: bool) -> _Handled:
        """Respond by the cached route if the image is composed, else by the parsed route."""
        request, headers = handling.request, handling.request.headers
        if request.method == "OPTIONS":
            if self._cors is not None and self._cors.is_preflight(headers):
                return PreparedResponse(self._cors.preflight(headers))
            return PreparedResponse(Response(204, render_fields(("Allow", ", ".join(ALLOWED_METHODS)))))
        asked = f"{request.target}\n{headers.get('authorization', '')}\n{handling.address}"
        handling.key = sha256(asked.encode()).digest()
        cached = self._cached_routes.get(handling.key)
        if cached is not None and not overloaded and cached.is_allowed():
            image_request = parse_image_request(request, cached.reader)
            composed = self._images.get_cached_image(image_request)
            if composed is not None:
                deadline = self._images.deadline()
                return self._responses.prepare(request, image_request, composed, cached, deadline)
        if self._registry is not None and (asked_for := parse_registry_route(request.target, headers)):
            handling.subject = Subject(REGISTRY_HANDLER)
            _check_load(overloaded=overloaded)
            return self._handle_registry(handling, asked_for, self._registry)
        route = parse_route(request.target, headers, self._base_path)
        self._check_listener(route)
        handling.route, handling.subject = route, _subject(route)
        if not isinstance(route, Probe):
            _check_load(overloaded=overloaded)
        return self._handle_route(handling, route)

    def _handle_registry(self, handling: _Handling, route: RegistryRoute, registry: Registry) -> _Handled:
        if route.image is None:
            return registry.respond_without_image(handling.request, route, handling.subject)
        self._check_listener(route.image)
        handling.route, handling.subject = route.image, _subject(route.image)
        reader = Reader(handling.address, route.image.credentials, route.image.ref)
        request_id = handling.identify()
        responded = registry.respond(
            handling.request, route, ImageAccess(reader, handling.subject), request_id
        )
        return Deferred.fromCoroutine(responded)

    def _check_listener(self, route: Route) -> None:
        # Published files of streams are pristine: they hold nothing to hide from the network.
        for ref in _refs(route):
            if not ref.needs_customization:
                continue
            kind = (ref.kind or Kind.FULL_ISO).customization_kind  # only ISOs are asked for without a kind
            if kind is Kind.IPXE_SCRIPT:  # which names the initrd
                kind = Kind.PXE_INITRD
            if kind in self._withheld:
                named = "ISOs" if kind.is_iso else "initrds of infra-envs"
                raise NotFound(f"this listener serves no {named}; use the other one of this service")

    def _handle_route(self, handling: _Handling, route: Route) -> _Handled:
        request, subject = handling.request, handling.subject
        match route:
            case ImageRoute():
                access = ImageAccess(Reader(handling.address, route.credentials, route.ref), subject)
                return Deferred.fromCoroutine(self._handle_image(handling, route, access))
            case LinkRoute():
                return Deferred.fromCoroutine(self._handle_link(handling, route))
            case ChecksumsRoute():
                return Deferred.fromCoroutine(self._handle_checksums(handling, route))
            case MirrorRoute():
                if route.ref is None:
                    raise NotFound(
                        "not found; the documents of a stream are STREAM.json, STREAM-RELEASE.json and"
                        " STREAM/configmap.yaml, those of all configmap.yaml"
                    )
                representation = Representation(self._mirror(route.ref))
                return PreparedResponse(representation.respond(request.method, request.headers), subject)
            case PublicDocument() | Probe():
                return self._pages.respond(request, route, subject)

    async def _handle_checksums(self, handling: _Handling, route: ChecksumsRoute) -> PreparedResponse:
        request_id = handling.identify()
        return await self._responses.prepare_checksums(
            handling.request, route, handling.address, handling.subject, request_id
        )

    async def _handle_link(self, handling: _Handling, link_route: LinkRoute) -> PreparedResponse:
        link = await self._links.open(link_route.code, handling.address)
        target = link.target
        ref = target.find_ref(link_route.suffix)
        credentials = target.credentials if ref.needs_customization else None
        route = ImageRoute(link_route.handler, ref, credentials, document=link_route.document)
        handling.route, handling.subject = route, _subject(route)
        self._check_listener(route)
        reader = Reader(handling.address, credentials, ref, target.pin if ref is target.ref else None)
        access = ImageAccess(reader, handling.subject, partial(self._links.is_current, link))
        return await self._handle_image(handling, route, access, link_route.code)

    async def _handle_image(
        self, handling: _Handling, route: ImageRoute, access: ImageAccess, link_code: str = ""
    ) -> PreparedResponse:
        request_id = handling.identify()
        request = handling.request
        if route.ref.needs_customization and route.ref.kind is Kind.IPXE_SCRIPT:
            if route.document:
                raise NotFound(f"an iPXE script has no {_NAMES[route.document]}")
            script = await self._scripts.render(access.reader, request.headers, request_id, link_code)
            return prepare_page(request, access.subject, (script, "text/plain"))
        if route.document:
            return await self._responses.prepare_document(request, access, request_id, route.document)
        image_request, deadline = parse_image_request(request, access.reader), self._images.deadline()
        composed = await self._images.get(image_request, request_id)
        handling.subject = attrs.evolve(access.subject, kind=_kind(composed.version.ref))
        access = attrs.evolve(access, subject=handling.subject)
        self._cached_routes[handling.key] = access
        prepared = self._responses.prepare(request, image_request, composed, access, deadline)
        return prepared if isinstance(prepared, PreparedResponse) else await prepared


def _check_load(*, overloaded: bool) -> None:
    if overloaded:
        raise Unavailable("the limit on connections is reached", retry_after_seconds=5)


def _refuse(handling: _Handling, failure: Failure) -> PreparedResponse:
    """Return the response for an error, which is logged with its traceback if it is unexpected."""
    request, route, subject = handling.request, handling.route, handling.subject
    error = failure.value
    if isinstance(error, CancelledError):
        error = Unavailable("this service is shutting down", retry_after_seconds=1)
    if isinstance(error, UnknownBaseImage) and isinstance(route, ImageRoute) and route.version_is_parameter:
        error = InvalidParameter(error.detail)
    if not isinstance(error, ImageServiceError):
        _log.failure(
            "unexpected error while handling a request: {handler} {infra_env}",
            failure,
            handler=subject.handler,
            infra_env=subject.infra_env,
        )
        error = ImageServiceError("the image could not be composed; see the log of this service")
    return PreparedResponse(problem(error, request.headers, head_only=request.method == "HEAD"), subject)


def _subject(route: Route) -> Subject:
    """Return the subject of a request, as far as the request says."""
    match route:
        case PublicDocument() | Probe():
            return Subject(route.value)
        case MirrorRoute() | LinkRoute():
            return Subject(route.handler)
        case ImageRoute():
            document = f" {route.document.value}" if route.document else ""
            return Subject(route.handler, _infra_env(route), f"{_kind(route.ref)}{document}")
        case ChecksumsRoute():
            return Subject(route.handler, _infra_env(route), CHECKSUMS_FILE)


def _infra_env(route: ImageRoute | ChecksumsRoute) -> str:
    ref = _refs(route)[0]
    return ref.infra_env_id if ref.needs_customization else ""


def _refs(route: Route) -> tuple[Ref, ...]:
    """Return the images that a route names, as far as the request says."""
    match route:
        case ImageRoute():
            return (route.ref,)
        case ChecksumsRoute():
            return tuple(route.files.values())
    return ()


def _kind(ref: Ref) -> str:
    if not ref.needs_customization:
        return ref.artifact.value
    return ref.kind.value if ref.kind else ""
