"""Answers requests: probes, and images by their routes."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.errors import (
    ImageServiceError,
    InvalidParameter,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.http.digests import checksum_line, repr_digest
from image_service.http.exchange import NOTHING, Answer, Subject
from image_service.http.head import ALLOWED_METHODS
from image_service.http.problem import problem
from image_service.http.response import Response, render_fields
from image_service.http.routes import ImageRoute, Probe, parse_route
from image_service.images.extents import Literal
from image_service.images.reference import ArtifactRef, ImageRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.http.boot_images import BootImages, Kept, Key, Ref
    from image_service.http.cors import Cors
    from image_service.http.digests import Digests
    from image_service.http.head import Request
    from image_service.http.routes import Route

_log = Logger()

MAX_KNOWN = 4096
_Asker: TypeAlias = tuple[str, str | None]
"""Target and Authorization: all that a request's meaning depends on."""


@attrs.frozen(eq=False)
class _Known:
    """What a request was found to mean."""

    key: Key
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
    ) -> None:
        self._images = images
        self._digests = digests
        self._ready = ready
        self._base_path = base_path
        self._serves_isos = serves_isos
        self._cors = cors
        # The second range of a mount is one look-up: no route is parsed, nothing is waited for.
        self._known: OrderedDict[_Asker, _Known] = OrderedDict()

    def handle(self, request: Request, *, crowded: bool) -> Answer | Deferred[Answer]:
        """Answer a request; never raises and never fails.

        Args:
            request: a sound one.
            crowded: only probes are answered, the rest refused.

        Returns:
            the answer, at once where it is known.
        """
        answer = self._handle(request, crowded=crowded)
        if self._cors is None:
            return answer
        fields = self._cors.fields(request.headers)
        return (
            _with(fields, answer)
            if isinstance(answer, Answer)
            else answer.addCallback(partial(_with, fields))
        )

    def _handle(self, request: Request, *, crowded: bool) -> Answer | Deferred[Answer]:
        asker = (request.target, request.headers.get("authorization"))
        known = self._known.get(asker)
        if known is not None and not crowded and request.method != "OPTIONS":
            kept = self._images.fresh(known.key)
            if kept is not None:
                self._known.move_to_end(asker)
                return self._answer(request, kept, known.subject)
        if request.method == "OPTIONS":
            return self._answer_options(request)
        try:
            route = parse_route(request.target, request.headers, self._base_path)
            self._check_listener(route)
        except ImageServiceError as error:
            return _refusal(request, error)
        if isinstance(route, Probe):
            return self._answer_probe(request, route)
        if crowded:
            crowd = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return _refusal(request, crowd, _subject(route))
        return Deferred.fromCoroutine(self._answer_image(request, route, asker))

    def _check_listener(self, route: Route) -> None:
        if self._serves_isos or isinstance(route, Probe) or isinstance(route.ref, ArtifactRef):
            return
        if route.ref.kind is None or route.ref.kind.is_iso:
            raise NotFound("ISOs are served by the other listener of this service alone")

    async def _answer_image(self, request: Request, route: ImageRoute, asker: _Asker) -> Answer:
        subject = _subject(route)
        failure: ImageServiceError
        try:
            kept = await self._images.get(route.ref, route.credentials)
            subject = attrs.evolve(subject, kind=_kind(kept.ref))
            if route.is_digest:
                return await self._answer_digest(request, kept, subject)
            self._remember(asker, _Known((route.ref, route.credentials), subject))
            return self._answer(request, kept, subject)
        except UnknownBaseImage as error:
            failure = InvalidParameter(error.detail) if route.version_is_parameter else error
        except ImageServiceError as error:
            failure = error
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            _log.failure("no image could be made for {infra_env}", infra_env=subject.infra_env or route.ref)
            failure = ImageServiceError("the image could not be made; the service's log tells why")
        return _refusal(request, failure, subject)

    def _answer(self, request: Request, kept: Kept, subject: Subject) -> Answer:
        representation = kept.representation
        digest = self._digests.known(representation.image.etag)
        more = b"" if digest is None else render_fields(("Repr-Digest", repr_digest(digest)))
        return Answer(representation.respond(request.method, request.headers, more), subject)

    async def _answer_digest(self, request: Request, kept: Kept, subject: Subject) -> Answer:
        image = kept.representation.image
        digest = await self._digests.get(image)
        line = checksum_line(digest, image.file_name)
        return _text(request, subject, line, ("Image-ETag", image.etag))

    def _answer_options(self, request: Request) -> Answer:
        if self._cors is not None and self._cors.is_preflight(request.headers):
            return Answer(self._cors.preflight(request.headers))
        return Answer(Response(204, render_fields(("Allow", ", ".join(ALLOWED_METHODS)))))

    def _remember(self, asker: _Asker, known: _Known) -> None:
        self._known[asker] = known
        self._known.move_to_end(asker)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _answer_probe(self, request: Request, probe: Probe) -> Answer:
        subject = Subject(probe.value)
        if probe is Probe.HEALTH and not self._ready():
            error = Unavailable("no base image is ready yet", retry_after_seconds=1)
            return _refusal(request, error, subject)
        return _text(request, subject, b"ok\n")


def _text(request: Request, subject: Subject, body: bytes, *more: tuple[str, str]) -> Answer:
    fields = render_fields(
        ("Content-Type", "text/plain"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *more,
    )
    if request.method == "HEAD":
        return Answer(Response(200, fields), subject)
    return Answer(Response(200, fields, (Literal(body),), len(body)), subject)


def _with(fields: bytes, answer: Answer) -> Answer:
    return attrs.evolve(
        answer, response=attrs.evolve(answer.response, fields=answer.response.fields + fields)
    )


def _refusal(request: Request, error: ImageServiceError, subject: Subject = NOTHING) -> Answer:
    return Answer(problem(error, head_only=request.method == "HEAD"), subject)


def _subject(route: ImageRoute) -> Subject:
    """What is asked for, as far as the request says."""
    infra_env = route.ref.infra_env_id if isinstance(route.ref, ImageRef) else ""
    return Subject(route.handler, infra_env, _kind(route.ref))


def _kind(ref: Ref) -> str:
    if isinstance(ref, ArtifactRef):
        return ref.artifact.value
    return ref.kind.value if ref.kind else ""
