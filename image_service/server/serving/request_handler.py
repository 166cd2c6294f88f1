"""The request handler: images, digests, published files of streams, and probes, by their routes."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from image_service.common.concurrency.lru import ENTRY_BYTES, LruCache
from image_service.common.concurrency.single_flight import shielded
from image_service.core.errors import (
    ImageServiceError,
    InvalidParameter,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.core.images.extents import Literal
from image_service.core.images.reference import Kind, Reader
from image_service.server.boot_progress.recording import ContentReads
from image_service.server.http.head import ALLOWED_METHODS
from image_service.server.http.problem import problem
from image_service.server.http.request_id import new_request_id, valid_request_id
from image_service.server.http.respond import Representation
from image_service.server.http.response import Response, render_fields
from image_service.server.http.routes import (
    ImageRoute,
    LinkRoute,
    MirrorRoute,
    Probe,
    PublicDocument,
    parse_route,
)
from image_service.server.links.link import SCRIPT
from image_service.server.serving.client_reads import find_reads
from image_service.server.serving.digests import checksum_line, repr_digest
from image_service.server.serving.image_request import parse_image_request
from image_service.server.serving.landing_page import PAGE_FIELDS, render_landing_page
from image_service.server.serving.openapi import render_openapi
from image_service.server.serving.range_stream import RangeStream, RepeatedHead, always
from image_service.server.snapshots.storage.model import ImageRequest, ReadMode
from image_service.server.transport.exchanges.exchange import NO_SUBJECT, PreparedResponse, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.reference import Ref, StreamRef
    from image_service.server.boot_progress.recording import ReadRecorder
    from image_service.server.http.cors import Cors
    from image_service.server.http.head import Request
    from image_service.server.http.routes import Route
    from image_service.server.links.links import Links
    from image_service.server.serving.digests import Digests
    from image_service.server.serving.ipxe_scripts import IpxeScripts
    from image_service.server.snapshots.boot_images import BootImages
    from image_service.server.snapshots.storage.model import ComposedVersion

_log = Logger()

ROUTES_BYTES = 2 * 1024 * 1024
"""Of all cached routes, for some 700 clients with tokens. They hold the credentials, which a new mount needs,
in clear: so there are no more than serve clients that open a connection for each range."""
Page: TypeAlias = tuple[bytes, str]
"""Content and its media type."""
_Handled: TypeAlias = "PreparedResponse | Deferred[PreparedResponse]"


def _no_streams(_: StreamRef) -> BootImage:
    raise NotFound("there are no streams")


@attrs.frozen(eq=False)
class _CachedRoute:
    """The result of parsing a target, for a client.

    Args:
        is_allowed: returns False once the short link that the target is has to be read again.
    """

    reader: Reader
    subject: Subject
    is_allowed: Callable[[], bool]

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about."""
        credentials = self.reader.credentials
        return ENTRY_BYTES + (len(credentials.secret) if credentials else 0)


@attrs.define(eq=False)
class ImageRequestHandler:
    """Handles the requests of one listener.

    Args:
        unready: returns why no image can be served; empty if some can.
        base_path: the path of the service's base URL.
        withheld: kinds of image that only another listener serves.
        cors: which pages of other origins may read the responses; None: none.
        metrics: renders the metrics; None: another listener serves them.
        base_images: renders the base images' states as JSON; None: same.
        mirror: returns a published file of a stream.
        impairment: returns what does not work although images can be served, in a line; empty if all does.
    """

    _images: BootImages
    _digests: Digests
    _unready: Callable[[], str]
    _reads: ReadRecorder
    _base_path: str = ""
    _links: Links = attrs.field(kw_only=True)
    _scripts: IpxeScripts = attrs.field(kw_only=True)
    _withheld: Collection[Kind] = attrs.field(default=(), kw_only=True)
    _cors: Cors | None = attrs.field(default=None, kw_only=True)
    _metrics: Callable[[], Page | Deferred[Page]] | None = attrs.field(default=None, kw_only=True)
    _base_images: Callable[[], bytes] | None = attrs.field(default=None, kw_only=True)
    _mirror: Callable[[StreamRef], BootImage] = attrs.field(default=_no_streams, kw_only=True)
    _impairment: Callable[[], str] = attrs.field(default=lambda: "", kw_only=True)
    _documents: Mapping[PublicDocument, bytes] = attrs.field(init=False)
    # By a digest of target, Authorization and client address: the first two may hold credentials.
    _cached_routes: LruCache[bytes, _CachedRoute] = attrs.field(
        init=False, factory=lambda: LruCache(ROUTES_BYTES, lambda route: route.held_bytes)
    )

    @_documents.default
    def _render_documents(self) -> Mapping[PublicDocument, bytes]:
        return {
            PublicDocument.HOME: render_landing_page(self._base_path),
            PublicDocument.OPENAPI: render_openapi(self._base_path),
        }

    @property
    def routes_bytes(self) -> int:
        """What the cached routes take in memory."""
        return self._cached_routes.held_bytes

    def handle(self, request: Request, address: str, *, overloaded: bool) -> _Handled:
        """Return the response to a request (see `exchange.RequestHandler`)."""
        try:
            prepared = self._handle(request, address, overloaded=overloaded)
        except Exception as error:  # noqa: BLE001 - any error: the client gets a response
            prepared = _refuse(request, error)
        if self._cors is None:
            return prepared
        fields = self._cors.fields(request.headers)
        if isinstance(prepared, PreparedResponse):
            return prepared.with_fields(fields)
        return prepared.addCallback(lambda prepared: prepared.with_fields(fields))

    def _handle(self, request: Request, address: str, *, overloaded: bool) -> _Handled:
        """Respond by the cached route if the image is composed, else by the parsed route."""
        headers = request.headers
        if request.method == "OPTIONS":
            if self._cors is not None and self._cors.is_preflight(headers):
                return PreparedResponse(self._cors.preflight(headers))
            return PreparedResponse(Response(204, render_fields(("Allow", ", ".join(ALLOWED_METHODS)))))
        key = sha256(f"{request.target}\n{headers.get('authorization', '')}\n{address}".encode()).digest()
        cached = self._cached_routes.get(key)
        if cached is not None and not overloaded and cached.is_allowed():
            image_request = parse_image_request(request, cached.reader)
            composed = self._images.get_cached_image(image_request)
            if composed is not None:
                return self._prepare_image(
                    request, image_request, composed, cached.subject, cached.is_allowed
                )
        route = parse_route(request.target, headers, self._base_path)
        self._check_listener(route)
        subject = _subject(route)
        if overloaded and not isinstance(route, Probe):
            overload = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return _refuse(request, overload, subject)
        try:
            return self._handle_route(request, route, address, key, subject)
        except ImageServiceError as error:
            return _refuse(request, error, subject)

    def _check_listener(self, route: Route) -> None:
        # Published files of streams are pristine: they hold nothing to hide from the network.
        if not isinstance(route, ImageRoute) or not route.ref.needs_customization:
            return
        kind = (route.ref.kind or Kind.FULL_ISO).customization_kind  # only ISOs are asked for without a kind
        if kind is Kind.IPXE_SCRIPT:  # which names the initrd
            kind = Kind.PXE_INITRD
        if kind in self._withheld:
            named = "ISOs" if kind.is_iso else "initrds of infra-envs"
            raise NotFound(f"this listener serves no {named}; use the other one of this service")

    def _handle_route(
        self, request: Request, route: Route, address: str, key: bytes, subject: Subject
    ) -> _Handled:
        match route:
            case ImageRoute():
                reader = Reader(address, route.credentials, route.ref)
                if route.ref.needs_customization and route.ref.kind is Kind.IPXE_SCRIPT:
                    return Deferred.fromCoroutine(self._handle_script(request, route, reader, subject))
                return Deferred.fromCoroutine(self._handle_image(request, route, reader, key, subject))
            case LinkRoute():
                return Deferred.fromCoroutine(self._handle_link(request, route, address, key))
            case MirrorRoute():
                if route.ref is None:
                    raise NotFound(
                        "not found; the documents of a stream are STREAM.json, STREAM-RELEASE.json and"
                        " STREAM/configmap.yaml"
                    )
                representation = Representation(self._mirror(route.ref))
                return PreparedResponse(representation.respond(request.method, request.headers), subject)
            case PublicDocument():
                return self._prepare_document(request, route, subject)
            case Probe():
                page = self._render_probe(route)
                prepare = partial(_prepare_page, request, subject)
                return page.addCallback(prepare) if isinstance(page, Deferred) else prepare(page)

    def _prepare_document(
        self, request: Request, document: PublicDocument, subject: Subject
    ) -> PreparedResponse:
        if document is PublicDocument.OPENAPI:
            return _prepare_page(request, subject, (self._documents[document], "application/json"))
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFound("not found; /openapi.json describes this service")
        page = self._documents[document], "text/html; charset=utf-8"
        return _prepare_page(request, subject, page, *PAGE_FIELDS)

    def _render_probe(self, probe: Probe) -> Page | Deferred[Page]:
        match probe:
            case Probe.METRICS if self._metrics is not None:
                return self._metrics()
            case Probe.IMAGES if self._base_images is not None:
                return self._base_images(), "application/json"
            case Probe.METRICS | Probe.IMAGES:
                raise NotFound("not found; the administrative listener of this service has it")
            case Probe.HEALTH if reason := self._unready():
                raise Unavailable(reason, retry_after_seconds=1)
            case Probe.HEALTH if impairment := self._impairment():
                return f"ok\n{impairment}\n".encode(), "text/plain"
            case _:
                return b"ok\n", "text/plain"

    async def _handle_link(
        self, request: Request, link_route: LinkRoute, address: str, key: bytes
    ) -> PreparedResponse:
        subject = Subject(link_route.handler)
        try:
            link = await self._links.open(link_route.code, address)
            target = link.target
            ref = target.find_ref(link_route.suffix)
            credentials = target.credentials if ref.needs_customization else None
            route = ImageRoute(link_route.handler, ref, credentials, is_digest=link_route.is_digest)
            subject = _subject(route)
            self._check_listener(route)
        except ImageServiceError as error:
            return _refuse(request, error, subject)
        reader = Reader(address, credentials, ref, target.pin if ref is target.ref else None)
        if link_route.suffix == SCRIPT:
            return await self._handle_script(request, route, reader, subject, link_route.code)
        is_allowed = partial(self._links.is_current, link)
        return await self._handle_image(request, route, reader, key, subject, is_allowed=is_allowed)

    async def _handle_script(
        self, request: Request, route: ImageRoute, reader: Reader, subject: Subject, link_code: str = ""
    ) -> PreparedResponse:
        if route.is_digest:
            return _refuse(request, NotFound("an iPXE script has no digest"), subject)
        request, request_id = _identify(request)
        try:
            script = await self._scripts.render(reader, request.headers, request_id, link_code)
        except UnknownBaseImage as error:
            return _refuse(request, _of_route(error, route), subject)
        except Exception as error:  # noqa: BLE001 - any error: the client gets a response
            return _refuse(request, error, subject)
        return _prepare_page(request, subject, (script, "text/plain"))

    async def _handle_image(  # noqa: PLR0913 - the parts of the request
        self,
        request: Request,
        route: ImageRoute,
        reader: Reader,
        key: bytes,
        subject: Subject,
        *,
        is_allowed: Callable[[], bool] = always,
    ) -> PreparedResponse:
        request, request_id = _identify(request)
        try:
            if route.is_digest:
                deadline = self._digests.deadline()
                image = (await self._images.get(ImageRequest(reader), request_id)).representation.image
                page = checksum_line(await self._digests.get(image, deadline), image.file_name), "text/plain"
                return _prepare_page(request, subject, page, ("Image-ETag", image.etag))
            image_request = parse_image_request(request, reader)
            composed = await self._images.get(image_request, request_id)
            subject = attrs.evolve(subject, kind=_kind(composed.version.ref))
            self._cached_routes[key] = _CachedRoute(reader, subject, is_allowed)
            prepared = self._prepare_image(request, image_request, composed, subject, is_allowed)
            return prepared if isinstance(prepared, PreparedResponse) else await prepared
        except UnknownBaseImage as error:
            return _refuse(request, _of_route(error, route), subject)
        except Exception as error:  # noqa: BLE001 - any error: the client gets a response
            return _refuse(request, error, subject)

    def _prepare_image(
        self,
        request: Request,
        image_request: ImageRequest,
        composed: ComposedVersion,
        subject: Subject,
        is_allowed: Callable[[], bool],
    ) -> _Handled:
        representation, reader, headers = composed.representation, image_request.reader, request.headers
        image = representation.image
        # A date is a weak validator (RFC 9110 section 8.8.2.2): another snapshot may have the same one.
        is_unproven = image_request.date is not None and not image.is_public
        if is_unproven and self._images.mounts.find(reader) != composed.version:
            headers = {name: value for name, value in headers.items() if name != "range"}
        digest = self._digests.get_cached_digest(image.etag)
        more = b"" if digest is None else render_fields(("Repr-Digest", repr_digest(digest)))
        response = representation.respond(request.method, headers, more)
        if response.status not in {200, 206}:
            return PreparedResponse(response, subject)
        reads = find_reads(self._reads, request, reader, composed, response.length)
        if request.method == "HEAD":
            self._images.retain(image_request, composed)
            repeated = RepeatedHead(
                self._images, self._digests, image_request, ref(image), digest, is_allowed
            )
            record_head = lambda _: reads.record_head()  # noqa: E731 - nothing of a HEAD's content is sent
            return PreparedResponse(response, subject, on_sent=record_head, is_current=repeated.is_current)
        mount = self._images.record_mount(image_request, composed)
        ranges = None
        if image_request.mode is ReadMode.RESUME:
            fields = representation.part_fields(headers, more)
            ranges = RangeStream(self._images, reader, mount, image.size, fields, reads, is_allowed)
        prepared = PreparedResponse(
            response,
            subject,
            partial(self._images.mounts.end_response, mount),
            ranges,
            on_sent=ContentReads(reads, response.ranges).record,
        )
        return prepared if mount.saving is None else shielded(mount.saving).addCallback(lambda _: prepared)


def _of_route(error: UnknownBaseImage, route: ImageRoute) -> ImageServiceError:
    """Return the error for a version that is unknown: the contract's status depends on where it stands."""
    return InvalidParameter(error.detail) if route.version_is_parameter else error


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


def _identify(request: Request) -> tuple[Request, str]:
    """Return a request with a valid X-Request-ID, its own or a new one, so that log lines can name it."""
    request_id = valid_request_id(request.headers.get("x-request-id")) or new_request_id()
    return attrs.evolve(request, headers={**request.headers, "x-request-id": request_id}), request_id


def _refuse(request: Request, error: Exception, subject: Subject = NO_SUBJECT) -> PreparedResponse:
    """Return the response for an error, which is logged with its traceback if it is unexpected."""
    if isinstance(error, CancelledError):
        error = Unavailable("this service is shutting down", retry_after_seconds=1)
    if not isinstance(error, ImageServiceError):
        _log.failure(
            "unexpected error while handling a request: {handler} {infra_env}",
            handler=subject.handler,
            infra_env=subject.infra_env,
        )
        error = ImageServiceError("the image could not be composed; see the log of this service")
    return PreparedResponse(problem(error, request.headers, head_only=request.method == "HEAD"), subject)


def _subject(route: Route) -> Subject:
    """Return what a request is about, as far as the request says."""
    match route:
        case PublicDocument() | Probe():
            return Subject(route.value)
        case MirrorRoute() | LinkRoute():
            return Subject(route.handler)
        case ImageRoute():
            infra_env = route.ref.infra_env_id if route.ref.needs_customization else ""
            digest = " sha256" if route.is_digest else ""
            return Subject(route.handler, infra_env, f"{_kind(route.ref)}{digest}")


def _kind(ref: Ref) -> str:
    if not ref.needs_customization:
        return ref.artifact.value
    return ref.kind.value if ref.kind else ""
