"""Files, images and overlays for tests, and naive readers of the results."""

from __future__ import annotations

import os
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import Extent, ExtentMap, FileExtent, Literal, Overlay, Zeros
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.images.base_image import BaseImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from image_service.core.base_file import BaseFile
    from image_service.core.images.boot_image import BootImage

CONFIG = b'{"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}'


def read(extents: Iterable[Extent]) -> bytes:
    """Return the bytes of extents."""
    return b"".join(map(_read_one, extents))


def bytes_of(image: BootImage) -> bytes:
    """Return the whole image."""
    return read(image.extents.extents)


def _read_one(extent: Extent) -> bytes:
    if isinstance(extent, FileExtent):
        data = os.pread(extent.file.descriptor, extent.length, extent.offset)
        assert len(data) == extent.length, "the extent leaves its file"
        return data
    return bytes(extent.data) if isinstance(extent, Literal) else bytes(extent.length)


def build(below: bytes, overlays: Iterable[Overlay]) -> bytes:
    """Return the image of overlays over bytes, computed naively."""
    image = bytearray(below)
    for overlay in overlays:
        image[overlay.offset : overlay.stop] = read([overlay.data])
    return bytes(image)


@contextmanager
def base_file(content: bytes) -> Iterator[BaseFile]:
    """An open file with ``content``."""
    descriptor = os.memfd_create("base")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield LocalFile(descriptor, len(content), "base.iso")
    finally:
        os.close(descriptor)


@contextmanager
def base_image(
    iso: bytes,
    *,
    version: str = "9.6.20250523-0",
    architecture: str = "x86_64",
    disconnected: bool = False,
    needs_nmstate: bool = False,
) -> Iterator[BaseImage]:
    """A live ISO as the catalog returns it."""
    with base_file(iso) as file:
        parsed = read_live_iso(lambda offset, length: os.pread(file.descriptor, length, offset), file.size)
        digest = sha256(iso).hexdigest()
        yield BaseImage(
            file, parsed, digest, version, architecture, disconnected, needs_nmstate=needs_nmstate
        )


contents = st.binary(min_size=1, max_size=80)


@st.composite
def overlays_for(draw: st.DrawFn, size: int) -> Sequence[Overlay]:
    """Disjoint overlays of an image of ``size`` bytes, including empty and adjacent ones, in any order."""
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=12)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    laid = [Overlay(start, draw(_data(stop - start))) for start, stop in spans]
    return draw(st.permutations(laid))


def _data(length: int) -> st.SearchStrategy[Literal | Zeros]:
    literals = st.binary(min_size=length, max_size=length).map(Literal)
    return literals | st.just(Zeros(length))


@st.composite
def maps_over(draw: st.DrawFn, file: BaseFile, content: bytes) -> tuple[ExtentMap, bytes]:
    """A map of several extents, one of them of the file, and its bytes."""
    start = draw(st.integers(0, len(content) - 1))
    stop = draw(st.integers(start + 1, len(content)))
    around = st.lists((contents.map(Literal) | st.integers(1, 20).map(Zeros)), max_size=3)
    pieces = (*draw(around), FileExtent(file, start, stop - start), *draw(around))
    return ExtentMap(pieces), read(pieces)
