"""Leases: what the requests of a connection mean that goes on reading an image is found out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.exchange import Answer, Subject
from image_service.http.respond import PartFields  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.http.boot_images import BootImages
    from image_service.http.mounts import Mount
    from image_service.http.versions import Version
    from image_service.images.reference import Reader


@attrs.frozen(eq=False)
class ImageLease:
    """What a range without a validator was found to mean.

    Whether it still means this, ``BootImages`` is asked for each range: so a lease never outlasts the
    snapshot's TTL, the mount, or the right to see the image. It holds no image: of those that are composed,
    the least recently used still gives way.

    Args:
        images: knows what is being read.
        reader: who reads.
        mount: what it reads.
        size: of the image, bytes.
        fields: of all the answers.
        subject: of all the answers.
        ended: what is called when an answer is over.
    """

    _images: BootImages
    _reader: Reader
    _mount: Mount[Version]
    _size: int
    _fields: PartFields
    _subject: Subject
    _ended: Callable[[], None]

    def answer(self, first: int, last: int) -> Answer | None:
        """Answer a further range (see ``exchange.Lease``)."""
        stop = min(last + 1, self._size)
        if first >= stop:
            return None
        composed = self._images.reads_on(self._reader, self._mount)
        if composed is None:
            return None
        response = composed.representation.part(self._fields, first, stop)
        return Answer(response, self._subject, self._ended, self)

    def with_fields(self, more: bytes) -> ImageLease:
        """Give one whose answers have more fields.

        Args:
            more: rendered field lines.
        """
        fields = attrs.evolve(self._fields, before=more + self._fields.before)
        return attrs.evolve(self, fields=fields)
