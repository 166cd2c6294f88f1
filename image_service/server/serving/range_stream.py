"""The fast path: further ranges of a mount, and repeated HEADs, on one connection.

Both pass through `transport.connection`, `transport.dispatch`, this module and `snapshots.lookups`: no head
is parsed, and all fields but the numbers of ranges are rendered already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.server.boot_progress.recording import ContentReads
from image_service.server.http.ranges import clamp
from image_service.server.http.respond import PartFields  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import ref

    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.reference import Reader
    from image_service.server.boot_progress.recording import PendingReads
    from image_service.server.serving.digests import Digests
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.snapshots.lookups import CachedLookup, NewestLookup
    from image_service.server.snapshots.mounts import Mount
    from image_service.server.snapshots.versions import ImageRequest
    from image_service.server.transport.exchanges.exchange import Message


def always() -> bool:
    """Return True: of a reader whose right depends on no short link."""
    return True


@attrs.define(eq=False)
class RangeStream:
    """The responses to the ranges of a mount that come without a validator.

    Each range checks that its cached lookup is still valid, so no response outlasts the snapshot's validity,
    the mount, or the client's right to see the image.

    Args:
        size: of the image, bytes.
        fields: of all responses.
        is_allowed: returns False once the reader's short link has ended.
    """

    _images: ImageFinder
    _reader: Reader
    _mount: Mount
    _size: int
    _fields: PartFields
    _reads: PendingReads
    _is_allowed: Callable[[], bool] = always
    is_remote: bool = attrs.field(default=True, init=False)
    """See `exchange.RangeResponder`."""
    _lookup: CachedLookup | None = attrs.field(default=None, init=False)

    def respond_to_range(self, first: int, last: int, now: float) -> Message | None:
        """Return the response to a range (see `exchange.RangeResponder`)."""
        byte_range = clamp(first, last, self._size)
        if byte_range is None:
            return None
        lookup = self._lookup
        image = None if lookup is None else lookup.image(now)
        if image is None:
            if not self._is_allowed():
                return None
            lookup = self._lookup = self._images.look_up(self._reader, self._mount, now)
            image = None if lookup is None else lookup.image(now)
            if image is None:
                return None
            self.is_remote = image.extents.is_remote
        start, stop = byte_range
        return self._fields.render(start, stop), image.extents.slice(start, stop)

    def hold_mount(self) -> Callable[[], None]:
        """Keep the mount in progress until the returned function is called."""
        return self._images.mounts.keep_in_progress(self._mount)

    @property
    def record_sent(self) -> Callable[[int, int], None]:
        """See `exchange.RangeResponder`."""
        return self._reads.record

    def follow(self, first: int, last: int) -> Callable[[int], None]:
        """Return a function that records how many bytes of a response were sent since it began."""
        return ContentReads(self._reads, ((first, min(last + 1, self._size)),)).record

    def with_fields(self, more: bytes) -> RangeStream:
        """Return a stream whose responses have more fields."""
        fields = attrs.evolve(self._fields, before=more + self._fields.before)
        return attrs.evolve(self, fields=fields)


@attrs.define(eq=False)
class RepeatedHead:
    """The response to a HEAD, as long as an equal request has an equal response.

    It does not keep the image in memory.

    Args:
        digests: of which the image's may become known.
        digest: the image's as the response has it.
        is_allowed: returns False once the reader's short link has ended.
    """

    _images: ImageFinder
    _digests: Digests
    _request: ImageRequest
    _image: ref[BootImage]
    _digest: bytes | None
    _is_allowed: Callable[[], bool] = always
    _lookup: NewestLookup | None = attrs.field(default=None, init=False)

    def is_current(self, now: float) -> bool:
        """Return True if the response is right now (see `exchange.PreparedResponse`)."""
        lookup = self._lookup
        image = None if lookup is None else lookup.image(now)
        if lookup is not None and image is not None:
            if self._digests.get_cached_digest(image.etag) != self._digest:
                return False
            if lookup.snapshot is not None:
                self._images.snapshots.record_hit()
            return True
        if not self._is_allowed():
            return False
        lookup = self._images.look_up_newest(self._request, now)
        image = None if lookup is None else lookup.image(now)
        if (
            image is None
            or image is not self._image()
            or self._digests.get_cached_digest(image.etag) != self._digest
        ):
            return False
        self._lookup = lookup
        return True
