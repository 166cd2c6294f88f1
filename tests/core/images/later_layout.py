"""The byte layout of a made-up later release: it writes Huffman codes as zlib does."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from image_service.core.images.layouts import LAYOUTS, ByteLayout, newest_layout

if TYPE_CHECKING:
    import pytest


def deflate_by_zlib_huffman(data: bytes, _: int = 0) -> bytes:
    """Return zlib's deflate stream with Huffman codes alone."""
    coder = zlib.compressobj(wbits=-15, strategy=zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


PRESENT = newest_layout().version
LATER_LAYOUT = ByteLayout(PRESENT + 1, deflate_by_zlib_huffman)
LATER = LATER_LAYOUT.version
LAYOUTS_OF_BOTH = {PRESENT: LAYOUTS[PRESENT], LATER: LATER_LAYOUT}
"""Those of the later release."""


def become_later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the layouts of the later release."""
    for version in tuple(LAYOUTS):
        monkeypatch.delitem(LAYOUTS, version)
    for version, layout in LAYOUTS_OF_BOTH.items():
        monkeypatch.setitem(LAYOUTS, version, layout)
