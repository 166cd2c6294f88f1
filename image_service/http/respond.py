"""The answer to GET and HEAD for one representation (RFC 9110 sections 13 and 14). Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.errors import PreconditionFailed, RangeNotSatisfiable
from image_service.http.preconditions import Outcome, evaluate, range_applies
from image_service.http.problem import problem
from image_service.http.ranges import parse_range
from image_service.http.response import Response, render_fields
from image_service.http_dates import format_http_date
from image_service.images.boot_image import BootImage  # noqa: TC001 - attrs resolves annotations
from image_service.images.extents import Extent, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.http.ranges import ByteRange

_CONTENT_TYPE = "application/octet-stream"
# Never no-store: provisioning services keep a master copy by Last-Modified.
_CACHE_CONTROL = "private, no-cache"
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})


@attrs.frozen(eq=False)
class Representation:
    """A boot image with its header fields rendered once.

    Args:
        image: what is served.
    """

    image: BootImage
    _validators: bytes = attrs.field(init=False, repr=False)
    _fields: bytes = attrs.field(init=False, repr=False)
    _single_fields: bytes = attrs.field(init=False, repr=False)

    @_validators.default
    def _render_validators(self) -> bytes:
        return render_fields(("ETag", self.image.etag), ("Cache-Control", _CACHE_CONTROL))

    @_fields.default
    def _render_fields(self) -> bytes:
        fields = [("Content-Disposition", f'attachment; filename="{self.image.file_name}"')]
        if self.image.modified is not None:
            fields.append(("Last-Modified", format_http_date(self.image.modified)))
        # qemu compares this field's value byte by byte.
        fields.append(("Accept-Ranges", "bytes"))
        return self._validators + render_fields(*fields)

    @_single_fields.default
    def _render_single_fields(self) -> bytes:
        return self._fields + render_fields(("Content-Type", _CONTENT_TYPE))

    def respond(self, method: str, headers: Mapping[str, str]) -> Response:
        """Answer a request for this representation.

        Args:
            method: ``GET`` or ``HEAD``.
            headers: field values by lower-case name.

        Returns:
            200, 206, 304, 412 or 416.
        """
        head_only = method == "HEAD"
        if not _CONDITIONS.isdisjoint(headers):
            outcome = evaluate(headers, self.image.etag, self.image.modified)
            if outcome is Outcome.NOT_MODIFIED:
                return Response(304, self._validators)
            if outcome is Outcome.FAILED:
                return self._failed(head_only=head_only)
        wanted = headers.get("range")
        # 14.2: Range is defined for GET alone.
        if wanted is None or head_only or not self._range_applies(headers):
            return self._whole(head_only=head_only)
        ranges = parse_range(wanted, self.image.size)
        if ranges is None:
            return self._whole(head_only=False)
        if not ranges:
            return self._unsatisfiable()
        return self._part(*ranges[0]) if len(ranges) == 1 else self._parts(ranges)

    def _range_applies(self, headers: Mapping[str, str]) -> bool:
        return range_applies(headers, self.image.etag, self.image.modified)

    def _whole(self, *, head_only: bool) -> Response:
        size = self.image.size
        fields = b"%bContent-Type: %b\r\nContent-Length: %d\r\n" % (
            self._fields,
            _CONTENT_TYPE.encode(),
            size,
        )
        if head_only:
            return Response(200, fields)
        return Response(200, fields, self.image.extents.extents, size)

    def _part(self, start: int, stop: int) -> Response:
        fields = b"%bContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n" % (
            self._single_fields,
            start,
            stop - 1,
            self.image.size,
            stop - start,
        )
        return Response(206, fields, self.image.extents.slice(start, stop), stop - start)

    def _parts(self, ranges: Sequence[ByteRange]) -> Response:
        """RFC 9110 14.6: multipart/byteranges; Content-Range stands in the parts only."""
        boundary = sha256(f"{self.image.etag} {ranges}".encode()).hexdigest()[:32]
        body: list[Extent] = []
        for index, (start, stop) in enumerate(ranges):
            delimiter = f"--{boundary}\r\n" if index == 0 else f"\r\n--{boundary}\r\n"
            content_range = f"bytes {start}-{stop - 1}/{self.image.size}"
            part = render_fields(("Content-Type", _CONTENT_TYPE), ("Content-Range", content_range))
            body += [Literal(delimiter.encode() + part + b"\r\n"), *self.image.extents.slice(start, stop)]
        body.append(Literal(f"\r\n--{boundary}--\r\n".encode()))
        length = sum(extent.length for extent in body)
        content_type = f"multipart/byteranges; boundary={boundary}"
        fields = render_fields(("Content-Type", content_type), ("Content-Length", str(length)))
        return Response(206, self._fields + fields, tuple(body), length)

    def _failed(self, *, head_only: bool) -> Response:
        error = PreconditionFailed("the image is not, or no longer, the one that the precondition names")
        return problem(error, head_only=head_only, extra=render_fields(("ETag", self.image.etag)))

    def _unsatisfiable(self) -> Response:
        size = self.image.size
        error = RangeNotSatisfiable(f"no requested range begins within the image's {size} bytes")
        fields = render_fields(("Content-Range", f"bytes */{size}"), ("ETag", self.image.etag))
        return problem(error, extra=fields)
