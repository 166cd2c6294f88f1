"""Leases: what the requests of a connection mean that goes on reading an image is found out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.respond import PartFields  # noqa: TC001 - attrs resolves annotations
from image_service.http.response import Response
from image_service.transport.access_log import Subject  # noqa: TC001 - attrs resolves annotations
from image_service.transport.exchange import Answer

if TYPE_CHECKING:
    from image_service.images.reference import Reader
    from image_service.snapshots.boot_images import BootImages
    from image_service.snapshots.cached_lookup import CachedLookup
    from image_service.snapshots.mounts import Mount
    from image_service.snapshots.versions import Version

_PARTIAL_CONTENT = 206


@attrs.define(eq=False)
class ImageLease:
    """What a range without a validator was found to mean.

    Whether it still means this is found out for each range: so a lease never outlasts the snapshot's TTL,
    the mount, or the right to see the image.

    Args:
        images: knows what is being read.
        reader: who reads.
        mount: what it reads.
        size: of the image, bytes.
        fields: of all the answers.
        subject: of all the answers.
    """

    _images: BootImages
    _reader: Reader
    _mount: Mount[Version]
    _size: int
    _fields: PartFields
    _subject: Subject
    _hold: CachedLookup | None = attrs.field(default=None, init=False)
    _is_sending: bool = attrs.field(default=False, init=False)
    _answer: Answer = attrs.field(init=False)

    @_answer.default
    def _make_answer(self) -> Answer:
        return Answer(Response(_PARTIAL_CONTENT, b""), self._subject, self.end, self)

    def answer(self, first: int, last: int, now: float) -> Answer | None:
        """Answer a further range (see ``exchange.Lease``)."""
        stop = min(last + 1, self._size)
        if first >= stop:
            return None
        image = None if self._hold is None else self._hold.image(now)
        if image is None:
            self._hold = self._images.hold(self._reader, self._mount, now)
            image = None if self._hold is None else self._hold.image(now)
            if image is None:
                return None
        self._mount.read_at = now
        response = self._answer.response
        response.fields = self._fields.render(first, stop)
        response.body = image.extents.slice(first, stop)
        response.length = stop - first
        return self._answer

    def keep_sending(self) -> None:
        """Note that the answer takes a while (see ``exchange.Lease``)."""
        if not self._is_sending:
            self._is_sending = True
            self._mount.answers += 1

    def end(self) -> None:
        """Note that the answer is over (see ``exchange.Lease``)."""
        self._answer.response.body = ()  # an idle connection keeps nothing of an image
        if self._is_sending:
            self._is_sending = False
            self._images.mounts.end(self._mount)

    def with_fields(self, more: bytes) -> ImageLease:
        """Give one whose answers have more fields (see ``exchange.Lease``)."""
        fields = attrs.evolve(self._fields, before=more + self._fields.before)
        return ImageLease(self._images, self._reader, self._mount, self._size, fields, self._subject)
