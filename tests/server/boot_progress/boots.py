"""An ISO like a real one, and clients that read it, in one process or in several."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.extents import ExtentMap, Zeros
from image_service.core.families.iso_layout import BootPart
from image_service.core.images.boot_areas import BootArea
from image_service.core.images.boot_image import BootImage
from image_service.server.boot_progress.board import ProgressBoard
from image_service.server.boot_progress.recording import ContentReads, ReadKey, ReadRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1024 * 1024
READ_AHEAD = 256 * 1024
STALL_SECONDS = 60.0
AREAS = (
    BootArea(BootPart.FIRMWARE, 90112, 131072),
    BootArea(BootPart.FIRMWARE, 131072, 131072 + 9 * MIB),
    BootArea(BootPart.BOOT_LOADER, 10 * MIB + 2048, 10 * MIB + 5130),
    BootArea(BootPart.CONFIG, 10 * MIB + 6144, 10 * MIB + 268288),
    BootArea(BootPart.INITRD, 10 * MIB + 268288, 100 * MIB + 268300),
    BootArea(BootPart.ROOTFS, 100 * MIB + 270336, 1100 * MIB),
    BootArea(BootPart.KERNEL, 1100 * MIB, 1115 * MIB),
    BootArea(BootPart.BOOT_LOADER, 1116 * MIB, 1117 * MIB),
)
"""As in a live ISO of Fedora CoreOS: the initrd is behind the Ignition area, and the kernel is the last."""
MINIMAL_AREAS = tuple(area for area in AREAS if area.part is not BootPart.ROOTFS)
SIZE = 1120 * MIB


def iso(areas: Sequence[BootArea] = AREAS, size: int = SIZE) -> BootImage:
    return BootImage(ExtentMap((Zeros(size),)), '"etag"', None, "discovery.iso", areas=tuple(areas))


INFRA_ENV = "5a3b1e00-0000-4000-8000-000000000001"


def key(kind: str = "full-iso", address: str = "192.0.2.1", *, infra_env: str | None = INFRA_ENV) -> ReadKey:
    return ReadKey(infra_env, "9.6", "x86_64", kind, address)


def part(wanted: BootPart, number: int = 0) -> BootArea:
    return [area for area in AREAS if area.part is wanted][number]


@attrs.define
class Site:
    """The processes of a service, and its board.

    Args:
        processes: how many serve the client in turn.
    """

    processes: int = 1
    now: float = 1000.0
    ended: list[tuple[str | None, str, int]] = attrs.field(factory=list)
    recorders: list[ReadRecorder] = attrs.field(init=False)
    board: ProgressBoard = attrs.field(init=False)
    _turn: int = 0

    def __attrs_post_init__(self) -> None:
        self.recorders = [ReadRecorder(lambda: self.now) for _ in range(self.processes)]
        epoch = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
        self.board = ProgressBoard(STALL_SECONDS, lambda: self.now, self._ended, lambda: epoch + self.now)

    def _ended(self, mount: dict[str, Any], sent: int, _seconds: float) -> None:
        self.ended.append((mount["stage"], mount["state"], sent))

    def collect(self) -> None:
        """Collect from all processes."""
        for recorder in self.recorders:
            self.board.merge(recorder.collect())
        self.board.check()

    def mounts(self) -> list[dict[str, Any]]:
        """Collect, and return the mounts."""
        self.collect()
        return self.board.describe_all()

    def mount(self) -> dict[str, Any]:
        """Collect, and return the only mount."""
        (found,) = self.mounts()
        return found

    def client(self, image: BootImage | None = None, mount_key: ReadKey | None = None) -> Client:
        """Return a client."""
        return Client(self, image or iso(), mount_key or key())

    def next_recorder(self) -> ReadRecorder:
        """Return the recorder of the process that sends the next range."""
        self._turn += 1
        return self.recorders[self._turn % self.processes]


@attrs.frozen
class Client:
    """A client whose ranges come to the processes in turn."""

    site: Site
    image: BootImage
    key: ReadKey

    def read(self, start: int, count: int = 2048, *, ahead: int = READ_AHEAD) -> None:
        """Read a range, and what follows."""
        self.site.now += 0.01
        stop = min(start + count + ahead, self.image.size)
        self.site.next_recorder().find(self.key, self.image).record(start, stop - start)

    def read_part(self, wanted: BootPart, block: int = 1, step: int = MIB) -> None:
        """Read a file from its beginning to its end, in whole blocks."""
        area = next(area for area in self.image.areas if area.part is wanted)
        for start in range(area.start // block * block, area.stop, step):
            self.read(start, min(step, area.stop - start))

    def head(self) -> None:
        """Ask for the header fields."""
        self.site.now += 0.01
        self.site.next_recorder().find(self.key, self.image).record_head()

    def download(self, sent: int, start: int = 0) -> ContentReads:
        """Read the image from `start` to its end, of which so much was sent so far."""
        reads = self.site.next_recorder().find(self.key, self.image)
        content = ContentReads(reads, ((start, self.image.size),))
        content.record(sent)
        return content

    def boot_until_ignition(self, block: int = 1) -> None:
        """Read everything up to the end of the initrd."""
        self.read(32768)
        self.read(part(BootPart.FIRMWARE).start)
        self.read(part(BootPart.BOOT_LOADER).start // block * block)
        self.read_part(BootPart.KERNEL, block)
        self.read_part(BootPart.INITRD, block)
