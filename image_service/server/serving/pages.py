"""The pages of a listener: probes, and the documents that describe the service."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs
from twisted.internet.defer import Deferred

from image_service.core.errors import NotFound, Unavailable
from image_service.core.extents import Literal
from image_service.server.http.response import Response, render_fields
from image_service.server.http.routes import Probe, PublicDocument
from image_service.server.serving.landing_page import PAGE_FIELDS, render_landing_page
from image_service.server.serving.openapi import render_openapi
from image_service.server.transport.exchanges.exchange import PreparedResponse, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.provenance.dsse import SigningKeys
    from image_service.server.http.head import Request

Page: TypeAlias = tuple[bytes, str]
"""Content and its media type."""


@attrs.frozen(eq=False)
class Pages:
    """Responds to requests for probes and public documents.

    Args:
        unready: returns why no image can be served; empty if some can.
        base_path: the path of the service's base URL.
        impairment: names in a line the parts that do not work although images can be served; empty if all do.
        metrics: renders the metrics; None: another listener serves them.
        base_images: renders the base images' states as JSON; None: same.
        signing_keys: returns the keys of statements as they are now; None: nothing is signed.
    """

    _unready: Callable[[], str]
    _base_path: str = ""
    _impairment: Callable[[], str] = attrs.field(default=lambda: "", kw_only=True)
    _metrics: Callable[[], Page | Deferred[Page]] | None = attrs.field(default=None, kw_only=True)
    _base_images: Callable[[], bytes] | None = attrs.field(default=None, kw_only=True)
    _signing_keys: Callable[[], SigningKeys] | None = attrs.field(default=None, kw_only=True)

    def respond(
        self, request: Request, route: Probe | PublicDocument, subject: Subject
    ) -> PreparedResponse | Deferred[PreparedResponse]:
        """Return the response to a request.

        Raises:
            NotFound: this listener does not serve the page, or not in this form.
            Unavailable: no image can be served now.
        """
        match route:
            case PublicDocument.OPENAPI:
                return prepare_page(request, subject, (render_openapi(self._base_path), "application/json"))
            case PublicDocument.SIGNING_KEYS:
                if self._signing_keys is None:
                    raise NotFound("this service signs no statements; SIGNING_KEY_FILE is not set")
                return prepare_page(request, subject, (self._signing_keys().pem, "application/x-pem-file"))
            case PublicDocument.HOME:
                if "text/html" not in request.headers.get("accept", ""):
                    raise NotFound("not found; /openapi.json describes this service")
                page = render_landing_page(self._base_path), "text/html; charset=utf-8"
                return prepare_page(request, subject, page, *PAGE_FIELDS)
            case Probe():
                rendered = self._render_probe(route)
                prepare = partial(prepare_page, request, subject)
                return rendered.addCallback(prepare) if isinstance(rendered, Deferred) else prepare(rendered)

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


def prepare_page(request: Request, subject: Subject, page: Page, *more: tuple[str, str]) -> PreparedResponse:
    """Return a response that nobody stores, with a page as its content, and more fields."""
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
