"""The pages of the administrative listener: static files, which a browser fills with data of the API."""

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
_API_PAGE = "api.html"
_LOGIN = "login.html"
"""The form that all pages have, in the place of the comment with its name."""
_FIELDS = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; {_SOURCES}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


def page_files(page: str = "index.html") -> Mapping[str, Handlers]:
    """Return the handlers of a page, of that of the API and of the files that they load, by path.

    The files are read once.
    """
    routes: dict[str, Handlers] = {}
    pages = {_API_PAGE: "/api", page: "/"}
    directory = files(__package__) / "static"
    login = (directory / _LOGIN).read_bytes()
    for file in directory.iterdir():
        suffix = file.name[file.name.rindex(".") :]
        if suffix == ".html" and file.name not in pages:
            continue
        content = file.read_bytes().replace(f"<!-- {_LOGIN} -->\n".encode(), login)
        response = ApiResponse(200, content, _MEDIA_TYPES[suffix], fields=_FIELDS)
        routes[pages.get(file.name, f"/static/{file.name}")] = {"GET": partial(_respond, response)}
    return routes


async def _respond(response: ApiResponse, _: ApiRequest) -> ApiResponse:
    return response
