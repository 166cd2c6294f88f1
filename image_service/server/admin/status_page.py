"""The pages of the administrative listener: static files, which a browser fills with data of the API."""

from __future__ import annotations

import html
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
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SOURCES = "script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
_PAGES = {"api.html": "/api", "documents.html": "/documents"}
"""That all roles have, and their paths."""
_LOGIN = "login.html"
"""The form that all pages have, in the place of the comment with its name."""
_DOCUMENTS = b"<!-- documents -->\n"
"""In the place of which the page of the documents lists them."""
_FIELDS = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; {_SOURCES}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


def page_files(page: str = "index.html") -> Mapping[str, Handlers]:
    """Return the handlers of a page, of those that all roles have and of the files that they load, by path.

    The files are read once.
    """
    routes: dict[str, Handlers] = {}
    pages = {**_PAGES, page: "/"}
    directory = files(__package__) / "static"
    login = (directory / _LOGIN).read_bytes()
    documents = _read_documents()
    for file in directory.iterdir():
        suffix = file.name[file.name.rindex(".") :]
        if suffix == ".html" and file.name not in pages:
            continue
        content = file.read_bytes().replace(f"<!-- {_LOGIN} -->\n".encode(), login)
        content = content.replace(_DOCUMENTS, _list_documents(documents))
        routes[pages.get(file.name, f"/static/{file.name}")] = _file(content, suffix)
    return routes | {f"/documents/{name}": _file(content, ".md") for name, content in documents.items()}


def _read_documents() -> Mapping[str, bytes]:
    """Return the pages of ``docs/`` that the package has, by file name."""
    directory = files("image_service") / "documents"
    return {
        file.name: file.read_bytes()
        for file in sorted(directory.iterdir(), key=lambda each: each.name)
        if file.name.endswith(".md") and file.name != "index.md"
    }


def _list_documents(documents: Mapping[str, bytes]) -> bytes:
    """Return a link to each document, with the title that its first line has."""
    titles = {name: content.decode().partition("\n")[0].lstrip("# ") for name, content in documents.items()}
    links = [f'<a href="#{name}">{html.escape(title)}</a>\n' for name, title in titles.items()]
    return "".join(links).encode()


def _file(content: bytes, suffix: str) -> Handlers:
    return {"GET": partial(_respond, ApiResponse(200, content, _MEDIA_TYPES[suffix], fields=_FIELDS))}


async def _respond(response: ApiResponse, _: ApiRequest) -> ApiResponse:
    return response
