"""Reads an image once, in two threads: one takes its digest, the other that of the base image in it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.common.command_line.parser import interrupt_on_signals
from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import BaseImageError
from image_service.core.formats.reading import Span
from image_service.core.provenance.undo import find_wrong_parts, read_pristine, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from image_service.core.base_file import BaseFile
    from image_service.core.provenance.statement import Statement
    from image_service.core.provenance.undo import PristineExtent
    from image_service.server.catalog.lifecycle.signature import KeyRing

_CHUNK = 1 << 20


class Comparable(Protocol):
    """A base image: a file, or a minimal ISO that is made of one."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` only at the end."""


@attrs.frozen
class VendorSignature:
    """The vendor's detached signature of the base image, and the keys that it must be by."""

    keys: KeyRing
    signature: bytes = attrs.field(repr=False)


@attrs.frozen
class TakenDigests:
    """The digests of an image, in lower-case hex.

    Args:
        image: of the whole.
        base: of the base image in it; None: it is an excerpt, which does not contain it.
        vendor_fault: why the vendor's signature is not valid; None: it is, or it was not checked.
    """

    image: str
    base: str | None
    vendor_fault: str | None = None


def take_digests(
    file: BaseFile,
    extents: Sequence[PristineExtent],
    vendor: VendorSignature | None,
    *,
    advance: Callable[[int], object],
) -> TakenDigests:
    """Return the digests of an image, and verify its vendor's signature.

    Args:
        extents: of the base image in it.
        advance: is called with the length of each block of the image.

    Raises:
        Unavailable: gpgv is not installed.
        OSError: the file cannot be read.
    """
    with ThreadPoolExecutor(2) as threads:
        image = threads.submit(file.sha256, on_block=advance)
        if not extents:
            return TakenDigests(image.result(), None)
        if vendor is None:
            base = threads.submit(_hash, read_pristine(file.read_at, extents))
            return TakenDigests(image.result(), base.result())
        receiver, sender = os.pipe()
        try:
            base = threads.submit(_hash, read_pristine(file.read_at, extents), sender)
            fault = _verify(vendor, receiver)
        finally:
            os.close(receiver)  # the sender fails if it still writes
        return TakenDigests(image.result(), base.result(), fault)


def _verify(vendor: VendorSignature, receiver: int) -> str | None:
    interruption = Interruption()
    with interrupt_on_signals(interruption.interrupt):
        try:
            vendor.keys.verify_descriptor(receiver, vendor.signature, interruption)
        except BaseImageError as error:
            return error.detail
    return None


def _hash(blocks: Iterable[bytes], sender: int | None = None) -> str:
    """Return the SHA-256 of blocks, which are also written to a pipe; that is closed."""
    digest = sha256()
    try:
        for block in blocks:
            digest.update(block)
            if sender is not None:
                try:
                    _write(sender, block)
                except BrokenPipeError:  # gpgv has ended early
                    os.close(sender)
                    sender = None
    finally:
        if sender is not None:
            os.close(sender)
    return digest.hexdigest()


def _write(sender: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(sender, rest) :]


def find_faults(file: BaseFile, statement: Statement, digests: TakenDigests) -> tuple[Span, ...]:
    """Return the bytes that belong neither to the base image nor to the customization, by a statement."""
    is_right = (digests.image, file.size) == (statement.sha256, statement.length)
    if is_right and digests.base in {None, statement.base.sha256}:
        return tuple(find_wrong_parts(file.read_at, file.size, statement))
    faults = undo(file.read_at, file.size, statement).faults
    # All parts have their digests, but the whole has not: the statement contradicts itself.
    return faults or (Span("image", 0, file.size),)


def compare(file: BaseFile, extents: Iterable[PristineExtent], base: Comparable) -> Iterator[Span]:
    """Yield the runs of the base image in an image that differ from the base image."""
    run: Span | None = None
    for offset, mine, theirs in _pairs(file, extents, base):
        if mine == theirs:
            continue
        length = min(len(mine), len(theirs))
        unequal = [at for at in range(length) if mine[at] != theirs[at]]
        start = unequal[0] if unequal else length
        stop = unequal[-1] + 1 if len(mine) == len(theirs) else max(len(mine), len(theirs))
        if run is not None and run.offset + run.length == offset + start:
            run = attrs.evolve(run, length=run.length + stop - start)
            continue
        if run is not None:
            yield run
        run = Span("base image", offset + start, stop - start)
    if run is not None:
        yield run


def _pairs(
    file: BaseFile, extents: Iterable[PristineExtent], base: Comparable
) -> Iterator[tuple[int, bytes, bytes]]:
    offset = 0
    for block in read_pristine(file.read_at, extents):
        yield offset, block, base.read_at(offset, len(block))
        offset += len(block)
    while offset < base.size:
        rest = base.read_at(offset, _CHUNK)
        yield offset, b"", rest
        offset += len(rest)


def compare_excerpt(statement: Statement, base: BaseFile) -> Iterator[Span]:
    """Yield the parts of an excerpt, as stated, that are not the base image's at their source."""
    for part in statement.excerpt:
        if part.source is not None:
            found = None
            with suppress(OSError):  # the base is too short
                found = base.sha256(part.source, part.length)
            if found != part.sha256:
                yield Span(part.purpose.value, part.offset, part.length)
