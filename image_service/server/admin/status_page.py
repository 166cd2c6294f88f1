"""The status page: static files, which a browser fills with data of the API."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.server.web_api.messages import ApiRequest
    from image_service.server.web_api.router import Handlers

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SOURCES = "script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
_INDEX = "index.html"


def page_fields(sources: str) -> tuple[tuple[str, str], ...]:
    """Return the fields of pages, which may load nothing else than what `sources` has.

    Args:
        sources: directives of a Content-Security-Policy.
    """
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
    )


def page_files() -> Mapping[str, Handlers]:
    """Return the handlers of the page and of the files that it loads, by path; the files are read once."""
    routes: dict[str, Handlers] = {}
    for file in (files(__package__) / "static").iterdir():
        suffix = file.name[file.name.rindex(".") :]
        response = ApiResponse(200, file.read_bytes(), _MEDIA_TYPES[suffix], fields=page_fields(_SOURCES))
        path = "/" if file.name == _INDEX else f"/static/{file.name}"
        routes[path] = {"GET": partial(_respond, response)}
    return routes


async def _respond(response: ApiResponse, _: ApiRequest) -> ApiResponse:
    return response
