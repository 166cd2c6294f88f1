"""The response to GET and HEAD for one representation (RFC 9110 sections 13 and 14). Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import PreconditionFailed, RangeNotSatisfiable
from image_service.core.extents import Extent, Literal
from image_service.core.images.boot_image import BootImage  # noqa: TC001 - attrs resolves annotations
from image_service.server.http.dates import format_http_date
from image_service.server.http.preconditions import Outcome, evaluate, range_applies
from image_service.server.http.problem import problem
from image_service.server.http.ranges import parse_range
from image_service.server.http.response import Response, render_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.server.http.ranges import ByteRange

# UEFI derives the type of an image from it, unless the path ends in .iso, which a query hides from some.
_ISO_CONTENT_TYPE = b"application/vnd.efi-iso"
_UEFI_USER_AGENT = "UefiHttpBoot/"
# Never no-store: provisioning services keep a master copy by Last-Modified.
_PRIVATE, _PUBLIC = "private, no-cache", "public, no-cache"
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})


@attrs.frozen
class PartFields:
    """The fields of a response with one range (RFC 9110 15.3.7.1), rendered except for the range's numbers.

    Args:
        before: all lines up to first-pos in Content-Range.
        between: from behind last-pos in Content-Range up to the number of Content-Length.
    """

    before: bytes
    between: bytes

    def render(self, start: int, stop: int) -> bytes:
        """Return the field lines for the bytes from `start` up to `stop`."""
        return b"%b%d-%d%b%d\r\n" % (self.before, start, stop - 1, self.between, stop - start)


@attrs.frozen(eq=False)
class Representation:
    """A boot image with its header fields rendered once.

    Args:
        date: Last-Modified, if it is known.
    """

    image: BootImage
    date: str | None = attrs.field(init=False)
    _validators: bytes = attrs.field(init=False, repr=False)
    _fields: bytes = attrs.field(init=False, repr=False)

    @date.default
    def _format_date(self) -> str | None:
        return None if self.image.modified is None else format_http_date(self.image.modified)

    @_validators.default
    def _render_validators(self) -> bytes:
        fields = [("ETag", self.image.etag), ("Cache-Control", _PUBLIC if self.image.is_public else _PRIVATE)]
        if self.image.is_iso:
            fields.append(("Vary", "User-Agent"))
        return render_fields(*fields)

    @_fields.default
    def _render_fields(self) -> bytes:
        fields = [("Content-Disposition", f'attachment; filename="{self.image.file_name}"')]
        if self.date is not None:
            fields.append(("Last-Modified", self.date))
        # qemu compares this field's value byte by byte.
        fields.append(("Accept-Ranges", "bytes"))
        # nginx would read up to 1 GiB ahead of the client, and then nothing for longer than STALL_TIMEOUT.
        fields.append(("X-Accel-Buffering", "no"))
        return self._validators + render_fields(*fields)

    def respond(self, method: str, headers: Mapping[str, str], more: bytes = b"") -> Response:
        """Return the response to a request: 200, 206, 304, 412 or 416.

        Args:
            method: GET or HEAD.
            headers: field values by lower-case name.
            more: rendered field lines for responses that have content, or would have it to a GET.
        """
        head_only = method == "HEAD"
        if not _CONDITIONS.isdisjoint(headers):
            outcome = evaluate(headers, self.image.etag, self.image.modified)
            if outcome is Outcome.NOT_MODIFIED:
                return Response(304, self._validators)
            if outcome is Outcome.FAILED:
                error = PreconditionFailed("the image does not, or no longer, match the precondition")
                etag = render_fields(("ETag", self.image.etag))
                return problem(error, headers, head_only=head_only, extra=etag)
        fields, content_type = self._fields + more, self._content_type(headers)
        size, ranges = self.image.size, None
        requested = None if head_only else headers.get("range")  # 14.2: for GET only
        if requested is not None and range_applies(headers, self.image.etag, self.image.modified):
            ranges = parse_range(requested, size)
        if ranges is None:
            whole = b"%bContent-Type: %b\r\nContent-Length: %d\r\n" % (fields, content_type, size)
            body, length = ((), 0) if head_only else (self.image.extents.extents, size)
            return Response(200, whole, body, length, ranges=((0, length),))
        if len(ranges) == 1:
            start, stop = ranges[0]
            part = self.part_fields(headers, more).render(start, stop)
            return Response(206, part, self.image.extents.slice(start, stop), stop - start, ranges=ranges)
        if ranges:
            return self._parts(fields, content_type, ranges)
        unsatisfiable = RangeNotSatisfiable(f"no requested range starts within the image's {size} bytes")
        extra = render_fields(("Content-Range", f"bytes */{size}"), ("ETag", self.image.etag))
        return problem(unsatisfiable, headers, extra=extra)

    def part_fields(self, headers: Mapping[str, str], more: bytes = b"") -> PartFields:
        """Return the fields of responses to requests that differ in Range only (see `respond`)."""
        before = b"%b%bContent-Type: %b\r\nContent-Range: bytes " % (
            self._fields,
            more,
            self._content_type(headers),
        )
        return PartFields(before, b"/%d\r\nContent-Length: " % self.image.size)

    def _content_type(self, headers: Mapping[str, str]) -> bytes:
        if self.image.is_iso and headers.get("user-agent", "").startswith(_UEFI_USER_AGENT):
            return _ISO_CONTENT_TYPE
        return self.image.content_type.encode("ascii")

    def _parts(self, fields: bytes, content_type: bytes, ranges: Sequence[ByteRange]) -> Response:
        """RFC 9110 14.6: multipart/byteranges; Content-Range is in the parts only."""
        boundary = sha256(f"{self.image.etag} {ranges}".encode()).hexdigest()[:32]
        body: list[Extent] = []
        for index, (start, stop) in enumerate(ranges):
            delimiter = f"--{boundary}\r\n" if index == 0 else f"\r\n--{boundary}\r\n"
            content_range = f"bytes {start}-{stop - 1}/{self.image.size}"
            part = render_fields(("Content-Type", content_type.decode()), ("Content-Range", content_range))
            body += [Literal(delimiter.encode() + part + b"\r\n"), *self.image.extents.slice(start, stop)]
        body.append(Literal(f"\r\n--{boundary}--\r\n".encode()))
        length = sum(extent.length for extent in body)
        multipart = f"multipart/byteranges; boundary={boundary}"
        fields += render_fields(("Content-Type", multipart), ("Content-Length", str(length)))
        return Response(206, fields, tuple(body), length, ranges=ranges)
