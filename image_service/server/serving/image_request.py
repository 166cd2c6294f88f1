"""Which version of an image a request asks for, by its validators (RFC 9110 sections 13 and 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.server.snapshots.storage.model import ImageRequest, ReadMode

if TYPE_CHECKING:
    from image_service.core.images.reference import Reader
    from image_service.server.http.head import Request

BEGINNING_BYTES = 64 * 1024
"""A client that reads here reads an image anew: an ISO's volume descriptor begins at 32 KiB."""
_ETAG = re.compile(r'(?:W/)?"[^"]*"')  # a weak one equals none of ours (RFC 9110 section 8.8.3.2)
_START = re.compile("bytes=([0-9]{1,9})-")
_VALIDATORS = frozenset({"if-match", "if-range", "if-none-match", "if-modified-since", "if-unmodified-since"})


def parse_image_request(request: Request, reader: Reader) -> ImageRequest:
    """Return the version that a request asks for."""
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
