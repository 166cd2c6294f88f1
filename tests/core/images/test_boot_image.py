from __future__ import annotations

import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent, Literal, Overlay, Zeros
from image_service.core.images.boot_image import BootImage, make_etag

EXTENTS = ExtentMap((FileExtent(LocalFile(-1, 2**33, "base.iso"), 0, 2**33), Literal(b"s3cr3t"), Zeros(4)))
IMAGE = BootImage(EXTENTS, '"e"', datetime(2026, 1, 2, tzinfo=UTC), "x.iso")
identities = st.text("ab 1", max_size=4)
# Overlays of a composition start with an archive's magic number, never with a line end.
literals = st.binary(max_size=3).map(lambda data: Literal(b"\x1f\x8b" + data))
overlay_lists = st.lists(
    st.builds(Overlay, st.integers(0, 30), literals | st.builds(Zeros, st.integers(0, 30))), max_size=3
)


def test_boot_image_size_equals_its_extents() -> None:
    assert IMAGE.size == 2**33 + 10


def test_images_compare_by_identity() -> None:
    """Comparing or hashing images never reads their extents."""
    twin = BootImage(EXTENTS, IMAGE.etag, IMAGE.modified, IMAGE.file_name)
    assert twin != IMAGE
    assert twin.etag == IMAGE.etag


def test_repr_does_not_show_bytes() -> None:
    assert "s3cr3t" not in repr(IMAGE)


@given(identities, overlay_lists, identities, overlay_lists)
def test_etag_identifies_identity_and_overlays(
    one: str, some: list[Overlay], other: str, others: list[Overlay]
) -> None:
    assert (make_etag(one, some) == make_etag(other, others)) == ((one, some) == (other, others))


def test_etag_is_strong() -> None:
    """RFC 9110 section 8.8.3: quoted, without characters that need an escape."""
    assert re.fullmatch(r'"[0-9a-f]{40}"', make_etag("x", [Overlay(0, Literal(b'"\r\n'))]))


def test_overlays_may_be_an_iterator() -> None:
    overlays = [Overlay(3, Literal(b"abc")), Overlay(9, Zeros(2))]
    assert make_etag("x", iter(overlays)) == make_etag("x", overlays) != make_etag("x", ())
