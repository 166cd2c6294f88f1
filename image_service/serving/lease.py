"""Leases: what the requests of a connection mean that goes on reading an image is found out once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.respond import PartFields  # noqa: TC001 - attrs resolves annotations
from image_service.http.response import Response
from image_service.transport.exchange import Answer, Subject

if TYPE_CHECKING:
    from weakref import ref

    from image_service.concurrency.version_counters import VersionCounters
    from image_service.images.boot_image import BootImage
    from image_service.images.reference import Reader
    from image_service.snapshots.boot_images import BootImages
    from image_service.snapshots.mounts import Mount
    from image_service.snapshots.versions import Composed, Version

_PARTIAL_CONTENT = 206


@attrs.frozen(eq=False)
class CachedLookup:
    """What a reader reads on with, for as long as nobody need be asked.

    It holds no image: of those that are composed, the least recently used still gives way.

    Args:
        mount: of the reader.
        composed: what it reads.
        since: when it began, the clock's seconds.
        until: when to ask again at the latest.
        stamps: of readers and of questions.
        noted: those of the mount and of its snapshot.
    """

    mount: Mount[Version]
    _composed: ref[Composed]
    _since: float
    _until: float
    _stamps: VersionCounters
    _noted: tuple[tuple[int, int], ...]

    def image(self, now: float) -> BootImage | None:
        """Give what is read.

        Args:
            now: the clock's seconds.

        Returns:
            None: something has changed, or it is time to ask.
        """
        mount, composed = self.mount, self._composed()
        if not self._since <= now < self._until or composed is None or mount.is_over:
            return None
        snapshot = mount.version.snapshot
        if snapshot is not None and snapshot.tenure.ended:
            return None
        if self._noted and not self._stamps.are_as(self._noted):
            return None
        return composed.representation.image


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
