"""Answers requests: probes, and images by their routes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.errors import ImageServiceError, Unavailable
from image_service.http.exchange import NOTHING, Answer, Subject
from image_service.http.problem import problem
from image_service.http.response import Response, render_fields
from image_service.http.routes import ImageRoute, Probe, parse_route
from image_service.images.extents import Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.http.boot_images import BootImages, Kept, Key
    from image_service.http.head import Request

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
    """The service as a client sees it.

    Args:
        images: finds or makes images.
        ready: whether images can be served.
        base_path: the path of the service's base URL.
    """

    def __init__(self, images: BootImages, ready: Callable[[], bool], base_path: str = "") -> None:
        self._images = images
        self._ready = ready
        self._base_path = base_path
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
        asker = (request.target, request.headers.get("authorization"))
        known = self._known.get(asker)
        if known is not None and not crowded:
            kept = self._images.fresh(known.key)
            if kept is not None:
                self._known.move_to_end(asker)
                return _answer(request, kept, known.subject)
        try:
            route = parse_route(request.target, request.headers, self._base_path)
        except ImageServiceError as error:
            return _refusal(request, error)
        if isinstance(route, Probe):
            return self._answer_probe(request, route)
        if crowded:
            crowd = Unavailable("the limit on connections is reached", retry_after_seconds=5)
            return _refusal(request, crowd, _subject(route))
        return Deferred.fromCoroutine(self._answer_image(request, route, asker))

    async def _answer_image(self, request: Request, route: ImageRoute, asker: _Asker) -> Answer:
        ref = route.ref
        try:
            kept = await self._images.get(ref, route.credentials)
            subject = attrs.evolve(_subject(route), kind=kept.kind.value)
            self._remember(asker, _Known((ref, route.credentials), subject))
            return _answer(request, kept, subject)
        except ImageServiceError as error:
            failure = error
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            _log.failure("no image could be made for infra-env {infra_env}", infra_env=ref.infra_env_id)
            failure = ImageServiceError("the image could not be made; the service's log tells why")
        return _refusal(request, failure, _subject(route))

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
        body = b"ok\n"
        fields = render_fields(
            ("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")
        )
        if request.method == "HEAD":
            return Answer(Response(200, fields), subject)
        return Answer(Response(200, fields, (Literal(body),), len(body)), subject)


def _answer(request: Request, kept: Kept, subject: Subject) -> Answer:
    return Answer(kept.representation.respond(request.method, request.headers), subject)


def _refusal(request: Request, error: ImageServiceError, subject: Subject = NOTHING) -> Answer:
    return Answer(problem(error, head_only=request.method == "HEAD"), subject)


def _subject(route: ImageRoute) -> Subject:
    """What is asked for, as far as the request says."""
    ref = route.ref
    return Subject(route.handler, ref.infra_env_id, ref.kind.value if ref.kind else "")
