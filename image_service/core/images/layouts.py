"""Byte layouts: the versions of what lays a customization over a base image.

A snapshot keeps the layout of its first image for as long as it lives, because mounts outlive updates. So a
release has its own layout and that of the release before.

To add a version, give `ByteLayout` a field for what differs, in which the earlier ones keep what they do. To
remove one, delete its entry, and each field that has the same value in all the others. `deflate` stays: tests
of updates give it another value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.deflate import deflate_by_huffman, deflate_within

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen
class ByteLayout:
    """One version: whatever it composes has the same bytes in each release that has it."""

    version: int  # a part of the ETag
    deflate: Callable[[bytes, int], bytes]  # without a search for repeats, in so many bytes if it can


LAYOUTS = {
    3: ByteLayout(3, lambda data, _: deflate_by_huffman(data)),
    4: ByteLayout(4, deflate_within),
}
"""By version; the first release has both, because development versions before it stored snapshots of 3."""


def newest_layout() -> ByteLayout:
    """Return this release's own."""
    return LAYOUTS[max(LAYOUTS)]


def oldest_layout() -> ByteLayout:
    """Return that of the release before."""
    return LAYOUTS[min(LAYOUTS)]
