"""Records the reads of clients, in the process that serves them.

    PendingReads    the reads of one client of one image since the last collection
    ReadRecorder    finds them, and collects those that have changed

A range changes a few numbers alone. A `ProgressBoard`, of this process or of the supervisor, merges the
records of all processes.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import attrs

from image_service.core.families.iso_layout import BootPart
from image_service.server.boot_progress.coverage import Coverage
from image_service.server.boot_progress.stages import (
    BEGINNING_BYTES,
    MAX_BOOT_BYTES,
    NO_FILE,
    BootMap,
    Touches,
    find_last_stage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from image_service.core.images.boot_areas import BootArea
    from image_service.core.images.boot_image import BootImage

_JUMP_BYTES = 16 * 1024 * 1024
# Kinds of requests; plain numbers, because a flag's operators cost more than all else about a range.
BEGINNING = 1
"""The system area or the volume descriptors."""
SMALL = 2
"""A range of at most `MAX_BOOT_BYTES`, and not the whole image."""
RETURNED = 4
"""Bytes that were read before; a client that reads the image in order requests none."""
HEAD = 8
"""The header fields alone."""

CollectedReads: TypeAlias = dict[str, Any]
"""The result of `PendingReads.collect`; JSON can represent it."""


@attrs.frozen(cache_hash=True)
class ReadKey:
    """A client, and the image that it reads.

    Args:
        infra_env: identifier; None: a boot artifact, which all infra-envs share.
        version: OS build.
        architecture: as in ``OS_IMAGES``.
        kind: of image or boot artifact.
        address: the client's, as trusted proxies report it.
    """

    infra_env: str | None
    version: str
    architecture: str
    kind: str
    address: str


class PendingReads:
    """The reads of a client of an image since the last collection.

    Args:
        key: client and image.
        image: that the client reads.
        recorder: collects it.
    """

    client: str | None
    """The client's name, if it is known."""
    user_agent: str
    """As sent."""

    __slots__ = (
        "__weakref__",
        "_boot_map",
        "_coverage",
        "_file",
        "_first_read",
        "_is_changed",
        "_key",
        "_last_read",
        "_last_stage",
        "_marks",
        "_previous",
        "_recorder",
        "_rootfs",
        "_seconds",
        "_sent",
        "_touches",
        "client",
        "user_agent",
    )

    def __init__(self, key: ReadKey, image: BootImage, recorder: ReadRecorder) -> None:
        self._key = key
        self._recorder = recorder
        self._seconds = recorder.seconds
        self.client = None
        self.user_agent = ""
        self._boot_map = BootMap(image.areas)
        self._rootfs = find_rootfs(image.areas)
        self._last_stage = find_last_stage(image.areas)
        self._coverage = Coverage(image.size)
        self._touches = Touches()
        self._file = NO_FILE  # in which the latest range began
        self._is_changed = False
        self._marks = 0
        self._sent = 0
        self._previous = 0
        self._first_read = self._last_read = 0.0

    def record(self, start: int, count: int, requested: int = 0) -> None:
        """Record that a client was sent the beginning of a range.

        Args:
            start: offset of the first byte.
            count: bytes that the kernel has accepted.
            requested: bytes of the range; 0: those that were sent.
        """
        if count <= 0:
            return
        now, stop, coverage = self.add(start, count), start + count, self._coverage
        distance, self._previous = self._previous - start, start
        if distance > 0 and (
            distance > _JUMP_BYTES
            or (distance > 2 << coverage.shift and coverage.has(start) and coverage.has(stop - 1))
        ):
            self._marks |= RETURNED
        if start < BEGINNING_BYTES:
            self._marks |= BEGINNING
        requested = requested or count
        if requested > MAX_BOOT_BYTES or requested >= coverage.size:
            return
        file_start, file_stop, touch = self._file
        if file_start <= start and stop < file_stop:
            if touch is not None:
                self._touches.last[touch] = now
        else:
            self._marks |= SMALL
            self._touches.add(self._boot_map.find_touches(start, stop), now)
            self._file = self._boot_map.find_file(start)

    def record_head(self) -> None:
        """Record that a client was sent the header fields alone."""
        self._marks |= HEAD
        if not self._sent:
            self._first_read = self._last_read = self._seconds()
        if not self._is_changed:
            self._change()

    def add(self, start: int, count: int) -> float:
        """Record that a client was sent more bytes, of a range that has begun before; return the time."""
        self._coverage.add(start, start + count)
        now = self._last_read = self._seconds()
        if not self._sent:
            self._first_read = now
        self._sent += count
        if not self._is_changed:
            self._change()
        return now

    def _change(self) -> None:
        self._is_changed = True
        self._recorder.changed.append(self)

    def collect(self) -> CollectedReads:
        """Return the records, and clear them."""
        collected = {
            "key": attrs.astuple(self._key),
            "client": self.client,
            "user_agent": self.user_agent,
            "size": self._coverage.size,
            "rootfs": self._rootfs,
            "last_stage": self._last_stage.value,
            "bitmap": b64encode(self._coverage.bitmap).decode(),
            "marks": self._marks,
            "touches": self._touches.collect(),
            "sent": self._sent,
            "first_read": self._first_read,
            "last_read": self._last_read,
        }
        self._coverage.clear()
        self._is_changed = False
        self._marks = self._sent = 0
        self._file = NO_FILE
        return collected


def find_rootfs(areas: Sequence[BootArea]) -> tuple[int, int] | None:
    """Return where the root file system of an ISO begins and ends, the largest one; None: it has none."""
    found = [(area.start, area.stop) for area in areas if area.part is BootPart.ROOTFS]
    return max(found, key=lambda area: area[1] - area[0], default=None)


class ReadRecorder:
    """Finds the pending reads of clients, and collects those that have changed.

    Args:
        seconds: the clock, the same in all processes.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.changed: list[PendingReads] = []
        """Since the last collection."""
        # A connection holds what it reads, and `changed` the rest: a client has one in the process.
        self._pending: WeakValueDictionary[tuple[ReadKey, int], PendingReads] = WeakValueDictionary()

    def find(self, key: ReadKey, image: BootImage) -> PendingReads:
        """Return the pending reads of a client of an image."""
        pending = self._pending.get((key, image.size))
        if pending is None:
            pending = self._pending[key, image.size] = PendingReads(key, image, self)
        return pending

    def collect(self) -> list[CollectedReads]:
        """Return the reads since the last collection."""
        changed, self.changed = self.changed, []
        return [pending.collect() for pending in changed]


class ContentReads:
    """Records the content of one response while it is sent.

    Args:
        reads: of the client.
        ranges: that the content has, in order; the lines between those of a multipart content count as
            content of the image.
    """

    __slots__ = ("_ranges", "_reads", "_recorded")

    def __init__(self, reads: PendingReads, ranges: Sequence[tuple[int, int]]) -> None:
        self._reads = reads
        self._ranges = ranges
        self._recorded = 0

    def record(self, sent: int) -> None:
        """Record that so many bytes of the content were sent since it began."""
        position = 0
        for start, stop in self._ranges:
            begin = max(self._recorded - position, 0)
            end = min(sent - position, stop - start)
            if end > begin:
                if begin:
                    self._reads.add(start + begin, end - begin)
                else:
                    self._reads.record(start, end, stop - start)
            position += stop - start
        self._recorded = max(self._recorded, sent)
