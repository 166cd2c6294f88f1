"""Finds the base image in a customized one by its statement, and the bytes that differ from the statement."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.extents import FileExtent, Literal, Zeros
from image_service.core.formats.reading import Span
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from image_service.core.formats.reading import ReadAt
    from image_service.core.images.base_image import BaseImage
    from image_service.core.provenance.statement import StatedPart, Statement

_CHUNK = 1 << 20

PristineExtent: TypeAlias = Span | Literal | Zeros
"""A part of the base image: a span of the customized image, or the base's bytes beneath an overlay."""


@attrs.frozen
class Undone:
    """An image without its customization.

    Args:
        extents: of the base image, whole, in order; none: the image is an excerpt, which does not contain it.
        faults: bytes of the customized image that belong neither to the base nor to the customization, each
            as the least run that has a digest of its own; by offset.
    """

    extents: tuple[PristineExtent, ...]
    faults: tuple[Span, ...]


def undo(read_at: ReadAt, size: int, statement: Statement) -> Undone:
    """Take an image apart, and compare all of it with its statement; reads it once, which blocks.

    Args:
        read_at: reads the customized image.
        size: bytes of it.
    """
    extents = tuple(find_pristine(statement))
    faults = [*_wrong_blocks(read_at, size, extents, statement), *find_wrong_parts(read_at, size, statement)]
    if size < statement.length:
        faults.append(Span("absent", size, statement.length - size))
    if size > statement.length:
        faults.append(Span("behind the end", statement.length, size - statement.length))
    return Undone(extents, tuple(sorted(faults, key=lambda fault: fault.offset)))


def find_pristine(statement: Statement) -> Iterator[PristineExtent]:
    """Yield the extents of the base image, whole, in order; none of an excerpt."""
    if statement.excerpt:
        return
    position = 0
    for overlay in statement.overlays:
        if overlay.offset > position:
            yield Span("base image", position, overlay.offset - position)
        yield overlay.beneath
        position = overlay.offset + overlay.length
    if position < statement.base.length:
        yield Span("base image", position, statement.base.length - position)


def find_pristine_by_format(base: BaseImage) -> Iterator[PristineExtent]:
    """Yield the extents of an ISO of CoreOS with empty areas, whole, in order.

    They are those of the published image if all that was changed is in these areas, as coreos-installer does.

    Raises:
        Unprocessable: it is not of CoreOS.
    """
    image = compose(full_canvas(base), Customization(b"", (), modified=None), "")
    for extent in image.extents.extents:
        if isinstance(extent, FileExtent):
            yield Span("base image", extent.offset, extent.length)
        else:
            yield extent


def read_pristine(read_at: ReadAt, extents: Iterable[PristineExtent]) -> Iterator[bytes]:
    """Yield the bytes of extents, at most 1 MiB at once; fewer than they are if the image is cut."""
    for extent in extents:
        yield from _read(read_at, extent)


def find_wrong_parts(read_at: ReadAt, size: int, statement: Statement) -> Iterator[Span]:
    """Yield each part that is not the base's, and each of an excerpt, with another digest than stated."""
    parts: tuple[StatedPart, ...] = (*statement.overlays, *statement.tail, *statement.excerpt)
    for part in parts:
        span = Span(part.purpose.value, part.offset, part.length)
        if span.offset + span.length > size:
            return
        digest = sha256()
        for data in _read(read_at, span):
            digest.update(data)
        if digest.hexdigest() != part.sha256:
            yield span


def _wrong_blocks(
    read_at: ReadAt, size: int, extents: Sequence[PristineExtent], statement: Statement
) -> Iterator[Span]:
    """Yield the blocks of the pristine base with another digest, without overlays at their ends."""
    base = statement.base
    length, expected = base.block_length or base.length, base.blocks or (base.sha256,)
    whole, is_whole = sha256(), True
    for index, block in enumerate(_blocks(extents, length)):
        start = index * length
        if min(start + length, base.length) > size:
            return
        digest = sha256()
        own: list[Span] = []
        for extent in block:
            if isinstance(extent, Span):
                own.append(extent)
            for data in _read(read_at, extent):
                digest.update(data)
                whole.update(data)
        if digest.hexdigest() != expected[index]:
            is_whole = False
            begin = own[0].offset if own else start
            end = own[-1].offset + own[-1].length if own else min(start + length, base.length)
            yield Span("base image", begin, end - begin)
    if extents and is_whole and whole.hexdigest() != base.sha256:
        yield Span("base image", 0, base.length)


def _blocks(extents: Sequence[PristineExtent], length: int) -> Iterator[list[PristineExtent]]:
    """Yield the extents of each block of so many bytes; the last may be shorter."""
    block: list[PristineExtent] = []
    room = length
    for extent in extents:
        position = 0
        while position < extent.length:
            stop = min(extent.length, position + room)
            block.append(_slice(extent, position, stop))
            room -= stop - position
            position = stop
            if not room:
                yield block
                block, room = [], length
    if block:
        yield block


def _slice(extent: PristineExtent, start: int, stop: int) -> PristineExtent:
    if isinstance(extent, Span):
        return Span(extent.path, extent.offset + start, stop - start)
    return extent.slice(start, stop)


def _read(read_at: ReadAt, extent: PristineExtent) -> Iterator[bytes]:
    if isinstance(extent, Literal):
        yield bytes(extent.data)
        return
    for start in range(0, extent.length, _CHUNK):
        count = min(_CHUNK, extent.length - start)
        yield read_at(extent.offset + start, count) if isinstance(extent, Span) else bytes(count)
