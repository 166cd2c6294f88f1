"""The byte layout of a made-up later release: it writes Huffman codes as zlib does."""

from __future__ import annotations

import zlib

from image_service.core.images.layouts import LAYOUTS, ByteLayout, newest_layout


def deflate_by_zlib_huffman(data: bytes) -> bytes:
    """Return zlib's deflate stream with Huffman codes alone."""
    coder = zlib.compressobj(wbits=-15, strategy=zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


PRESENT = newest_layout().version
LATER_LAYOUT = ByteLayout(PRESENT + 1, deflate_by_zlib_huffman)
LATER = LATER_LAYOUT.version
LAYOUTS_OF_BOTH = {PRESENT: LAYOUTS[PRESENT], LATER: LATER_LAYOUT}
"""Of the present release and of the later one."""
