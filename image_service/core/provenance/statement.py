"""Statements: which bytes of an image are its base's, which are not, and why."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.extents import FileExtent, Literal, Zeros
from image_service.core.families.coreos.live_iso import LiveIso, read_live_iso
from image_service.core.families.iso_layout import BootPart
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from image_service.core.extents import Extent
    from image_service.core.formats.reading import ReadAt
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage

MAX_BENEATH = 1 << 20
"""Bytes of the base beneath all overlays, without those that are zero as a whole."""

EXCERPT_BYTES = 1 << 20
"""The longest part of an excerpt."""

_CHUNK = 1 << 20


class Purpose(enum.Enum):
    """What bytes are for. In an excerpt `BASE` are the base's, and `DERIVED` those of a file made from it."""

    IGNITION = "ignition"
    KERNEL_ARGUMENTS = "kernel-arguments"
    RAMDISK = "ramdisk"
    BOOT_RECORDS = "boot-records"
    BASE = "base-image"
    DERIVED = "derived"


@attrs.frozen
class StatedPart:
    """Bytes of an image at an offset, and their digest."""

    offset: int
    length: int
    sha256: str
    purpose: Purpose


@attrs.frozen
class StatedOverlay(StatedPart):
    """Bytes in place of the base's, and the base's own; `Zeros` are as many."""

    beneath: Literal | Zeros


@attrs.frozen
class StatedTail(StatedPart):
    """Bytes behind the base, or of an excerpt."""

    source: int | None = None  # the offset in the base of the same bytes; None: they are not the base's


def strip_origin(url: str) -> str:
    """Return a URL without what may be secret: user, password, query, fragment. ValueError: it is not one."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@attrs.frozen
class StatedBase:
    """The base image.

    Args:
        sha256: of the whole file.
        length: bytes.
        origin: the URL that it came from, stripped by `strip_origin`; None: it is not known.
        block_length: bytes of a block; the last may be shorter. None: there is one block, the whole.
        blocks: the SHA-256 of each block, if there are several.
        signature: its vendor's, a detached OpenPGP one; None: none was verified.
    """

    sha256: str
    length: int
    version: str
    architecture: str
    origin: str | None = attrs.field(default=None, converter=attrs.converters.optional(strip_origin))
    block_length: int | None = None
    blocks: tuple[str, ...] = ()
    signature: bytes | None = None


@attrs.frozen
class Statement:
    """A statement of one image.

    Args:
        length: bytes of the image.
        config_sha256: of the Ignition config as received; None: there is none.
        time: when the snapshot that the image is of was made, or its base if there is none; UTC, whole
            seconds; None: it is not known.
        layout: the version of the byte layout.
        overlays: by offset, disjoint, within the base.
        tail: from the end of the base to that of the image, without a gap.
        excerpt: all parts of an image that does not contain the whole of its base, without a gap; such an
            image has neither overlays nor tail.
    """

    file_name: str
    sha256: str
    length: int
    base: StatedBase
    config_sha256: str | None
    time: datetime | None
    layout: int
    overlays: tuple[StatedOverlay, ...] = ()
    tail: tuple[StatedTail, ...] = ()
    excerpt: tuple[StatedTail, ...] = ()


def hash_blocks(
    read_at: ReadAt, length: int, block_length: int, check: Callable[[], object] = lambda: None
) -> tuple[str, tuple[str, ...]]:
    """Return the SHA-256 of a base image, and that of each block of it. Blocks.

    Args:
        check: is called before each block; may raise to stop.

    Raises:
        FormatError: it is shorter.
    """
    whole, blocks = sha256(), []
    for start in range(0, length, block_length):
        check()
        data = read_exactly(read_at, start, min(block_length, length - start))
        whole.update(data)
        blocks.append(sha256(data).hexdigest())
    return whole.hexdigest(), tuple(blocks)


def state_image(  # noqa: PLR0913 - each is a member of the statement
    image: BootImage,
    base: BaseImage,
    stated: StatedBase,
    *,
    digest: str,
    config: bytes,
    time: datetime | None,
    layout: int,
    own: Purpose = Purpose.BOOT_RECORDS,
) -> Statement:
    """Return the statement of an image that was made from a base.

    It reads the base beneath the overlays, and its directories, which blocks.

    Args:
        digest: the SHA-256 of the image.
        config: empty: there is none.
        own: the purpose of bytes that are neither the base's nor in an area with a purpose.

    Raises:
        Unprocessable: the bytes beneath are too many.
    """
    regions = tuple(_regions(image, base))
    overlays: list[StatedOverlay] = []
    tail: list[StatedTail] = []
    is_whole = contains_whole(image, base)
    position, left = 0, MAX_BENEATH
    for extent in image.extents.extents if is_whole else _split(image.extents.extents):
        purpose = _purpose(regions, position, extent.length, own)
        if not is_whole:
            tail.append(_state_excerpt(extent, position, purpose, base))
        elif position >= stated.length:
            source = extent.offset if isinstance(extent, FileExtent) else None
            tail.append(StatedTail(position, extent.length, _digest(extent), purpose, source))
        elif not isinstance(extent, FileExtent):
            beneath = _beneath(base.file.read_at, position, extent.length, left)
            left -= extent.length if isinstance(beneath, Literal) else 0
            overlays.append(StatedOverlay(position, extent.length, _digest(extent), purpose, beneath))
        position += extent.length
    return Statement(
        file_name=image.file_name,
        sha256=digest,
        length=image.size,
        base=stated,
        config_sha256=sha256(config).hexdigest() if config else None,
        time=time.astimezone(UTC).replace(microsecond=0) if time else None,
        layout=layout,
        overlays=tuple(overlays),
        tail=tuple(tail) if is_whole else (),
        excerpt=() if is_whole else tuple(tail),
    )


def state_changes(  # noqa: PLR0913 - each is a member of the statement
    changes: Iterable[tuple[int, bytes, bytes]],
    appended: Iterable[bytes],
    stated: StatedBase,
    *,
    file_name: str,
    digest: str,
    config: bytes,
    layout: int,
) -> Statement:
    """Return the statement of a copy of a base image in which bytes were replaced, and others appended.

    Args:
        changes: offset, the base's bytes, and as many in their place; ascending, disjoint.
        appended: what follows the base, in parts that each get a digest.
        digest: the SHA-256 of the copy.
        config: empty: there is none.

    Raises:
        Unprocessable: the bytes beneath are too many.
    """
    overlays, left = [], MAX_BENEATH
    for offset, before, after in changes:
        beneath = _beneath(lambda start, length: before[start : start + length], 0, len(before), left)  # noqa: B023 - called at once
        left -= len(before) if isinstance(beneath, Literal) else 0
        overlays.append(
            StatedOverlay(offset, len(after), sha256(after).hexdigest(), Purpose.BOOT_RECORDS, beneath)
        )
    tail, length = [], stated.length
    for part in appended:
        tail.append(StatedTail(length, len(part), sha256(part).hexdigest(), Purpose.BOOT_RECORDS))
        length += len(part)
    return Statement(
        file_name=file_name,
        sha256=digest,
        length=length,
        base=stated,
        config_sha256=sha256(config).hexdigest() if config else None,
        time=None,
        layout=layout,
        overlays=tuple(overlays),
        tail=tuple(tail),
    )


def contains_whole(image: BootImage, base: BaseImage) -> bool:
    """Return True if all bytes of the base are in their places or replaced, and no other file's are there."""
    position = 0
    for extent in image.extents.extents:
        if position < base.file.size < position + extent.length:
            return False
        if isinstance(extent, FileExtent) and (
            extent.file is not base.file or extent.offset != position < base.file.size
        ):
            return False
        position += extent.length
    return position >= base.file.size


def _split(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Yield extents in pieces, each with a digest of its own, by which a wrong byte is located."""
    for extent in extents:
        for start in range(0, extent.length, EXCERPT_BYTES):
            yield extent.slice(start, min(start + EXCERPT_BYTES, extent.length))


def _state_excerpt(extent: Extent, position: int, purpose: Purpose, base: BaseImage) -> StatedTail:
    source = None
    if isinstance(extent, FileExtent):
        is_base = extent.file is base.file
        source, purpose = (extent.offset, Purpose.BASE) if is_base else (None, Purpose.DERIVED)
    return StatedTail(position, extent.length, _digest(extent), purpose, source)


def _regions(image: BootImage, base: BaseImage) -> Iterator[tuple[Purpose, int, int]]:
    """Yield the areas with a purpose of their own, from a start up to a stop."""
    if isinstance(base.iso, LiveIso) and image.areas:  # else it is not such an ISO
        found = read_live_iso(image.extents.read_at, image.size)
        spans = [(Purpose.IGNITION, found.ignition), (Purpose.RAMDISK, found.ramdisk)]
        if found.kernel_arguments:
            spans += [(Purpose.KERNEL_ARGUMENTS, span) for span in found.kernel_arguments.spans]
        yield from ((purpose, span.offset, span.offset + span.length) for purpose, span in spans if span)
    else:
        parts = (area for area in image.areas if area.part is BootPart.CONFIG)
        yield from ((Purpose.IGNITION, area.start, area.stop) for area in parts)


def _purpose(
    regions: Iterable[tuple[Purpose, int, int]], offset: int, length: int, otherwise: Purpose
) -> Purpose:
    for purpose, start, stop in regions:
        if start < offset + length and offset < stop:
            return purpose
    return otherwise


def _digest(extent: Extent) -> str:
    if isinstance(extent, FileExtent):
        return extent.file.sha256(extent.offset, extent.length)
    digest = sha256()
    for start in range(0, extent.length, _CHUNK):
        piece = extent.slice(start, min(start + _CHUNK, extent.length))
        digest.update(piece.data if isinstance(piece, Literal) else bytes(piece.length))
    return digest.hexdigest()


def _beneath(read_at: ReadAt, offset: int, length: int, limit: int) -> Literal | Zeros:
    starts = range(offset, offset + length, _CHUNK)
    pieces = (read_exactly(read_at, start, min(_CHUNK, offset + length - start)) for start in starts)
    if all(piece.count(0) == len(piece) for piece in pieces):
        return Zeros(length)
    if length > limit:
        raise Unprocessable(
            f"the base has bytes other than zero beneath {length} bytes at offset {offset};"
            f" a statement has {MAX_BENEATH} of them in all"
        )
    return Literal(read_exactly(read_at, offset, length))
