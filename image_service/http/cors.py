"""CORS (the Fetch standard, section 3.3): which pages of other origins may read the answers. Pure.

Nothing here is about credentials of the browser's own: ``Access-Control-Allow-Credentials`` is never sent. A
page that has a token sends it itself, by ``Authorization`` or in the URL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.http.response import Response, render_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "*"

_MAX_AGE_SECONDS = 600
# What a page may send beyond what the standard lets it; Content-Type is of no use, but was always allowed.
_REQUEST_FIELDS = (
    "Authorization",
    "Content-Type",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Range",
)
_EXPOSED_FIELDS = (
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Length",
    "Content-Range",
    "ETag",
    "Repr-Digest",
    "Retry-After",
)
_ALLOWANCES = render_fields(
    ("Access-Control-Allow-Methods", "GET, HEAD"),
    ("Access-Control-Allow-Headers", ", ".join(_REQUEST_FIELDS)),
    ("Access-Control-Max-Age", str(_MAX_AGE_SECONDS)),
)
_EXPOSED = render_fields(("Access-Control-Expose-Headers", ", ".join(_EXPOSED_FIELDS)))
# On every answer, or a cache would give one page what another one may read.
_VARY = render_fields(("Vary", "Origin"))


@attrs.frozen(eq=False)
class Cors:
    """The origins whose pages may read the answers.

    Args:
        allowed: origins in lower case; in each, one ``*`` may stand for any characters, or none. ``*`` alone
            is every origin.
    """

    allowed: tuple[str, ...]
    _pattern: re.Pattern[str] = attrs.field(init=False, repr=False)

    @_pattern.default
    def _compile(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(origin).replace(r"\*", "[!-~]*") for origin in self.allowed))

    def fields(self, headers: Mapping[str, str]) -> bytes:
        """The fields that an answer has for CORS, whatever it is.

        Args:
            headers: of the request: values by lower-case name.

        Returns:
            rendered field lines; where the page may not read the answer, or no page asks, ``Vary`` alone.
        """
        if not self._allows(headers):
            return _VARY
        origin = ANY if ANY in self.allowed else headers["origin"]
        return render_fields(("Access-Control-Allow-Origin", origin)) + _EXPOSED + _VARY

    @staticmethod
    def is_preflight(headers: Mapping[str, str]) -> bool:
        """Whether an OPTIONS request asks what a page may send.

        Args:
            headers: of the request: values by lower-case name.

        Returns:
            True where it has the two fields that a browser puts into each such request.
        """
        return "origin" in headers and "access-control-request-method" in headers

    def preflight(self, headers: Mapping[str, str]) -> Response:
        """Answer a browser that asks what a page may send; ``fields`` come to it as to every answer.

        Args:
            headers: of the request: values by lower-case name.

        Returns:
            204; it names methods and fields where the page's origin is allowed, whatever was asked for.
        """
        return Response(204, _ALLOWANCES if self._allows(headers) else b"")

    def _allows(self, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin")
        return origin is not None and self._pattern.fullmatch(origin.lower()) is not None
