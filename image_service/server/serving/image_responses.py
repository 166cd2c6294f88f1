"""Responses with images and their digests: chooses the version, and records the client's reads."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import attrs
from twisted.internet.defer import DeferredList

from image_service.common.concurrency.lru import ENTRY_BYTES
from image_service.core.errors import NotFound, Unprocessable
from image_service.core.images.reference import Reader
from image_service.server.boot_progress.clients import MAX_USER_AGENT, recognize_client
from image_service.server.boot_progress.recording import ContentReads, ReadKey
from image_service.server.http.response import render_fields
from image_service.server.http.routes import ImageDocument
from image_service.server.serving.digests import checksum_line, repr_digest
from image_service.server.serving.pages import prepare_page
from image_service.server.serving.range_stream import RangeStream, RepeatedHead, always
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.versions import ImageRequest, ReadMode
from image_service.server.transport.exchanges.exchange import PreparedResponse, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from image_service.server.boot_progress.recording import PendingReads, ReadRecorder
    from image_service.server.http.head import Request
    from image_service.server.http.routes import ChecksumsRoute
    from image_service.server.serving.digests import Digests
    from image_service.server.serving.statements import Statements
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.snapshots.versions import ComposedVersion

BEGINNING_BYTES = 64 * 1024
"""A client that reads here reads an image anew: an ISO's volume descriptor begins at 32 KiB."""
_ETAG = re.compile(r'(?:W/)?"[^"]*"')  # a weak one equals none of ours (RFC 9110 section 8.8.3.2)
_START = re.compile("bytes=([0-9]{1,9})-")
_VALIDATORS = frozenset({"if-match", "if-range", "if-none-match", "if-modified-since", "if-unmodified-since"})


@attrs.frozen(eq=False)
class ImageAccess:
    """An image and its reader, as a request's target or the short link in it names them.

    Args:
        is_allowed: returns False once the short link has to be read again.
    """

    reader: Reader
    subject: Subject
    is_allowed: Callable[[], bool] = always

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, about."""
        credentials = self.reader.credentials
        return ENTRY_BYTES + (len(credentials.secret) if credentials else 0)


@attrs.frozen(eq=False)
class ImageResponses:
    """Prepares the responses to requests for images, and records what their clients read."""

    _images: ImageFinder
    _digests: Digests
    _reads: ReadRecorder
    _statements: Statements | None = None

    async def prepare_document(
        self, request: Request, access: ImageAccess, request_id: str, document: ImageDocument
    ) -> PreparedResponse:
        """Return the response with the SHA-256 of an image, or with its signed statement.

        Raises:
            ImageServiceError: the image or its document is not available.
        """
        deadline = self._digests.deadline()
        if document is ImageDocument.STATEMENT and self._statements is None:
            raise NotFound("this service signs no statements; SIGNING_KEY_FILE is not set")
        composed = await self._images.get(ImageRequest(access.reader), request_id)
        image = composed.representation.image
        if document is ImageDocument.STATEMENT and self._statements is not None:
            bundle = await self._statements.get(composed, deadline)
            fields = render_fields(("Image-ETag", image.etag))
            return PreparedResponse(bundle.respond(request.method, request.headers, fields), access.subject)
        page = checksum_line(await self._digests.get(image, deadline), image.file_name), "text/plain"
        return prepare_page(request, access.subject, page, ("Image-ETag", image.etag))

    async def prepare_checksums(
        self, request: Request, route: ChecksumsRoute, address: str, subject: Subject, request_id: str
    ) -> PreparedResponse:
        """Return the response with the SHA-256 of each file of a directory that there is.

        Raises:
            ImageServiceError: there is none, one cannot be served now, or not all digests are available.
        """
        deadline = self._digests.deadline()
        readers = [Reader(address, route.credentials, ref) for ref in route.files.values()]
        found: list[tuple[bool, Any]] = await DeferredList(  # with Failures, which its type does not say
            [self._images.get(ImageRequest(reader), request_id) for reader in readers], consumeErrors=True
        )
        failures = [result for is_found, result in found if not is_found]
        momentary = [
            each for each in failures if each.check(VersionLost) or not each.check(NotFound, Unprocessable)
        ]
        for failure in momentary or failures[: len(failures) == len(found)]:
            failure.raiseException()
        lines = []
        for name, (is_found, composed) in zip(route.files, found, strict=True):
            if is_found:
                image = composed.representation.image
                lines.append(checksum_line(await self._digests.get(image, deadline), name))
        return prepare_page(request, subject, (b"".join(lines), "text/plain"))

    def prepare(
        self,
        request: Request,
        image_request: ImageRequest,
        composed: ComposedVersion,
        access: ImageAccess,
        deadline: float,
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Return the response with an image, or a part of it; later if its mount is not stored yet.

        Args:
            deadline: of the request, from ``ImageFinder.deadline``.
        """
        representation, reader, headers = composed.representation, access.reader, request.headers
        image = representation.image
        # A date is a weak validator (RFC 9110 section 8.8.2.2): another snapshot may have the same one.
        is_unproven = image_request.date is not None and not image.is_public
        if is_unproven and self._images.mounts.find(reader) != composed.version:
            headers = {name: value for name, value in headers.items() if name != "range"}
        digest = self._digests.get_cached_digest(image.etag)
        more = b"" if digest is None else render_fields(("Repr-Digest", repr_digest(digest)))
        response = representation.respond(request.method, headers, more)
        if response.status not in {200, 206}:
            return PreparedResponse(response, access.subject)
        reads = self._find_reads(request, reader, composed, response.length)
        if request.method == "HEAD":
            self._images.retention.announce(image_request, composed)
            repeated = RepeatedHead(
                self._images, self._digests, image_request, ref(image), digest, access.is_allowed
            )
            record_head = lambda _: reads.record_head()  # noqa: E731 - nothing of a HEAD's content is sent
            return PreparedResponse(
                response, access.subject, on_sent=record_head, is_current=repeated.is_current
            )
        mount = self._images.record_mount(image_request, composed)
        ranges = None
        if image_request.mode is ReadMode.RESUME:
            fields = representation.part_fields(headers, more)
            ranges = RangeStream(self._images, reader, mount, image.size, fields, reads, access.is_allowed)
        prepared = PreparedResponse(
            response,
            access.subject,
            partial(self._images.mounts.end_response, mount),
            ranges,
            on_sent=ContentReads(reads, response.ranges).record,
            warnings=image.doubts,
        )
        saved = self._images.until_saved(mount, deadline)
        return prepared if saved is None else saved.addCallback(lambda _: prepared)

    def _find_reads(
        self, request: Request, reader: Reader, composed: ComposedVersion, length: int
    ) -> PendingReads:
        """Return the reads of a client of an image, with the client's name as this request shows it."""
        ref, base = composed.version.ref, composed.version.base
        if ref.needs_customization:
            infra_env, kind = ref.infra_env_id, ref.kind.value if ref.kind else ""
        else:
            infra_env, kind = None, ref.artifact.value
        key = ReadKey(infra_env, base.version, base.architecture, kind, reader.address)
        reads = self._reads.find(key, composed.representation.image)
        user_agent = request.headers.get("user-agent", "")
        client = recognize_client(user_agent, request.headers.get("accept", ""), length)
        reads.client = client if user_agent else client or reads.client
        reads.user_agent = user_agent[:MAX_USER_AGENT]
        return reads


def parse_image_request(request: Request, reader: Reader) -> ImageRequest:
    """Return the version that a request asks for, by its validators (RFC 9110 sections 13 and 14)."""
    headers = request.headers
    if request.method != "GET" or "range" not in headers:
        return ImageRequest(reader)
    if _VALIDATORS.isdisjoint(headers):
        start = _START.match(headers["range"])
        starts_over = start is not None and int(start[1]) < BEGINNING_BYTES
        return ImageRequest(reader, ReadMode.RESUME, starts_over=starts_over)
    named = f"{headers.get('if-match', '')}, {headers.get('if-range', '')}"
    date = headers.get("if-range")
    if date is None and "if-match" not in headers:  # RFC 9110 section 13.1.4: else it is ignored
        date = headers.get("if-unmodified-since")
    if date is not None and '"' in date:  # an entity tag
        date = None
    return ImageRequest(reader, ReadMode.NAMED, tuple(_ETAG.findall(named)), date)
