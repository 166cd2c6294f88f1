"""Readers of images in memory, and the real images beside the checkout."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.families.coreos.live_iso import read_live_iso

if TYPE_CHECKING:
    from image_service.core.families.coreos.live_iso import LiveIso
    from image_service.core.formats.reading import ReadAt

FIXTURES = Path(__file__).resolve().parents[4] / "shared" / "fixtures" / "coreos-installer"


def reader(image: bytes) -> ReadAt:
    """Return a reader of an image in memory."""
    return lambda offset, length: image[offset : offset + length]


def read_layout(image: bytes) -> LiveIso:
    """Return the layout of an image in memory."""
    return read_live_iso(reader(image), len(image))


@cache
def fixture(name: str) -> bytes:
    """Return a file of coreos-installer's test data, decompressed; skips the test or module without it."""
    packed = FIXTURES / f"{name}.xz"
    if not packed.exists():
        pytest.skip(
            "coreos-installer's test data are absent: a checkout stands alone", allow_module_level=True
        )
    return lzma.decompress(packed.read_bytes())


class MeteredReader:
    """Reads an image in memory, and limits the reads.

    Args:
        image: the bytes.
        limit: bytes that may be read in all.
    """

    def __init__(self, image: bytes, limit: int) -> None:
        self._image = image
        self._left = limit

    def __call__(self, offset: int, length: int) -> bytes:
        assert 0 <= offset < 2**63, "a file has no such offset"
        self._left -= length
        assert self._left >= 0, "more was read than an image of this size can be worth"
        return self._image[offset : offset + length]
