"""CORS (the Fetch standard, section 3.3): which pages of other origins may read the responses. Pure.

Credentials of the browser itself are never allowed: ``Access-Control-Allow-Credentials`` is not sent. A page
that has a token sends it by ``Authorization`` or in the URL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.server.http.response import Response, render_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "*"
_OPAQUE = "null"
# A serialized origin (RFC 6454 section 6.2) in lower case; other text cannot be a browser's.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")

# A page may send these in addition to the standard's fields; Content-Type has no effect, but was always
# allowed.
_REQUEST_FIELDS = (
    "Authorization, Content-Type, "
    "If-Match, If-Modified-Since, If-None-Match, If-Range, If-Unmodified-Since, Range"
)
_EXPOSED_FIELDS = (
    "Accept-Ranges, Content-Disposition, Content-Length, Content-Range, ETag, Repr-Digest, Retry-After"
)
_ALLOWANCES = render_fields(
    ("Access-Control-Allow-Methods", "GET, HEAD"),
    ("Access-Control-Allow-Headers", _REQUEST_FIELDS),
    ("Access-Control-Max-Age", "600"),
)
_EXPOSED = render_fields(("Access-Control-Expose-Headers", _EXPOSED_FIELDS))
# On every response: a cache must not return to one page a response that only another may read.
_VARY = render_fields(("Vary", "Origin"))


@attrs.frozen(eq=False)
class Cors:
    """The origins whose pages may read the responses.

    Args:
        allowed: origins in lower case; in each, one ``*`` matches any characters of a valid origin, or none.
            ``*`` alone matches every origin, and ``null``.
    """

    allowed: tuple[str, ...]
    _pattern: re.Pattern[str] = attrs.field(init=False, repr=False)

    @_pattern.default
    def _compile(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(origin).replace(r"\*", ".*") for origin in self.allowed))

    def fields(self, headers: Mapping[str, str]) -> bytes:
        """Return the field lines that every response needs: only Vary if the page may not read it."""
        if not self._allows(headers):
            return _VARY
        origin = ANY if ANY in self.allowed else headers["origin"]
        return render_fields(("Access-Control-Allow-Origin", origin)) + _EXPOSED + _VARY

    @staticmethod
    def is_preflight(headers: Mapping[str, str]) -> bool:
        """Return True if an OPTIONS request has the two fields of a browser's preflight."""
        return "origin" in headers and "access-control-request-method" in headers

    def preflight(self, headers: Mapping[str, str]) -> Response:
        """Return the 204 for a preflight, with all allowed methods and fields if the origin is allowed."""
        return Response(204, _ALLOWANCES if self._allows(headers) else b"")

    def _allows(self, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin", "").lower()
        if _ORIGIN.fullmatch(origin) is None:
            return origin == _OPAQUE and ANY in self.allowed
        return self._pattern.fullmatch(origin) is not None
