"""Where the redirects of a fetch may lead, and which of its requests carry the credentials."""

from __future__ import annotations

import string
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urljoin, urlsplit

from image_service.common.http.errors import HttpError
from image_service.common.http.origins import origin_of, public_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.http.response import HttpResponse

MAX_REDIRECTS = 10
REDIRECTS = {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
}
_ALLOWED = {("http", "http"), ("http", "https"), ("https", "https")}


class Redirects:
    """The requests of one fetch: to its URL, and to where redirects lead.

    Only those to the origin of its URL carry credentials, if that origin gets them at all: the fields, and in
    the first request the query parameters.

    Args:
        url: the first one.
        headers: fields that are credentials.
        parameters: query parameters that are credentials.
        is_trusted: the origin of `url` gets the credentials.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], parameters: Mapping[str, str], *, is_trusted: bool
    ) -> None:
        self._origin = origin_of(url) if is_trusted else None
        self._headers = headers
        self._query = urlencode(parameters)
        self._count = 0
        if self._query and is_trusted:
            url += f"{'&' if urlsplit(url).query else '?'}{self._query}"
        self.url = url
        """Of the next request."""

    def fields_for(self, url: str) -> Mapping[str, str]:
        """Return the credentials that a request carries."""
        return self._headers if origin_of(url) == self._origin else {}

    def follow(self, response: HttpResponse) -> None:
        """Go to where a redirect leads; HttpError if that is not allowed."""
        location = response.field("Location")
        if not location:
            raise HttpError(f"answered with status {response.status}, without an HTTP URL to follow")
        try:
            found = urljoin(self.url, quote(location, safe=string.punctuation, encoding="latin-1"))
            is_elsewhere = origin_of(found) != self._origin
        except ValueError:
            raise HttpError("redirects to an invalid URL") from None
        schemes = (urlsplit(self.url).scheme, urlsplit(found).scheme)
        if schemes not in _ALLOWED:
            raise HttpError(f"redirects from {schemes[0]} to {schemes[1]}, to {public_url(found)}")
        self._count += 1
        if self._count > MAX_REDIRECTS:
            raise HttpError(
                f"more than {MAX_REDIRECTS} redirects, the last one from {public_url(self.url)} to"
                f" {public_url(found)}"
            )
        if self._query and is_elsewhere:  # a Location may repeat our parameters
            split, ours = urlsplit(found), self._query.split("&")
            kept = "&".join(part for part in split.query.split("&") if part not in ours)
            found = split._replace(query=kept).geturl()
        self.url = found
