"""The fast path: further ranges of a mount, and repeated HEADs, on one connection.

Both pass through the connection, `transport.dispatch` (ranges only), this module and the lookup in
`snapshots`: no request is parsed, and all fields but the numbers of ranges are rendered already.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

import attrs

from image_service.http.ranges import clamp
from image_service.http.respond import PartFields  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.images.reference import Reader
    from image_service.serving.digests import Digests
    from image_service.snapshots.boot_images import BootImages, CachedLookup
    from image_service.snapshots.model import ComposedVersion, ImageRequest
    from image_service.snapshots.mounts import Mount
    from image_service.transport.exchange import Message


@attrs.define(eq=False)
class RangeStream:
    """The responses to the ranges of a mount that come without a validator.

    Each range checks that its cached lookup is still valid, so no response outlasts the snapshot's validity,
    the mount, or the client's right to see the image.

    Args:
        images: looks up what the mount reads.
        reader: whose mount it is.
        mount: what the ranges are of.
        size: of the image, bytes.
        fields: of all responses.
    """

    _images: BootImages
    _reader: Reader
    _mount: Mount
    _size: int
    _fields: PartFields
    _lookup: CachedLookup | None = attrs.field(default=None, init=False)

    def respond(self, first: int, last: int, now: float) -> Message | None:
        """Return the response to a range (see `exchange.RangeResponder`)."""
        byte_range = clamp(first, last, self._size)
        if byte_range is None:
            return None
        lookup = self._lookup
        image = None if lookup is None else lookup.image(now)
        if image is None:
            lookup = self._lookup = self._images.look_up(self._reader, self._mount, now)
            image = None if lookup is None else lookup.image(now)
            if image is None:
                return None
        self._mount.read_at = now
        return self._fields.render(*byte_range), image.extents.slice(*byte_range)

    def hold_mount(self) -> Callable[[], None]:
        """Keep the mount in progress until the returned function is called."""
        self._mount.responses += 1
        return partial(self._images.mounts.end_response, self._mount)

    def with_fields(self, more: bytes) -> RangeStream:
        """Return a stream whose responses have more fields."""
        fields = attrs.evolve(self._fields, before=more + self._fields.before)
        return RangeStream(self._images, self._reader, self._mount, self._size, fields)


def head_check(
    images: BootImages, digests: Digests, request: ImageRequest, composed: ComposedVersion
) -> Callable[[], bool]:
    """Return a function that is True as long as an equal HEAD request has an equal response.

    It looks up the image as for any request, so that a refusal or a newer snapshot shows at once. It does not
    keep the image in memory.
    """
    etag = composed.representation.image.etag
    digest = digests.get_cached(etag)
    expected = ref(composed)

    def is_current() -> bool:
        current = images.get_cached(request)
        if current is None or current is not expected() or digests.get_cached(etag) is not digest:
            return False
        images.retain(request, current)
        return True

    return is_current
