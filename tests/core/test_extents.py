from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent, Literal, Overlay, Zeros, apply_overlays
from tests.core.images.building import base_file, build, contents, maps_over, overlays_for, read

if TYPE_CHECKING:
    from image_service.core.base_file import Residency
    from image_service.core.extents import Extent

FILE = LocalFile(-1, 10 * 2**30, "never opened")


@given(st.data(), contents)
def test_any_ranges_over_any_overlays_are_slices_of_the_image(data: st.DataObject, content: bytes) -> None:
    with base_file(content) as file:
        below, bytes_below = data.draw(maps_over(file, content))
        overlays = data.draw(overlays_for(below.size))
        image = apply_overlays(below, overlays)
        expected = build(bytes_below, overlays)
        assert image.size == len(expected)
        assert read(image.extents) == expected
        for _ in range(8):
            start, stop = sorted(data.draw(st.tuples(*[st.integers(0, image.size)] * 2)))
            extents = image.slice(start, stop)
            assert read(extents) == expected[start:stop]
            assert all(extent.length > 0 for extent in extents)


@given(st.data(), contents)
def test_overlays_in_two_steps_equal_overlays_of_the_result(data: st.DataObject, content: bytes) -> None:
    with base_file(content) as file:
        below = ExtentMap((FileExtent(file, 0, file.size),))
        first, second = data.draw(overlays_for(file.size)), data.draw(overlays_for(file.size))
        image = apply_overlays(apply_overlays(below, first), second)
        assert read(image.extents) == build(build(content, first), second)


@given(st.data(), contents)
def test_slice_has_at_most_the_extents_of_the_image(data: st.DataObject, content: bytes) -> None:
    """Memory does not grow with the range."""
    with base_file(content) as file:
        image = apply_overlays(
            ExtentMap((FileExtent(file, 0, file.size),)), data.draw(overlays_for(file.size))
        )
        assert len(image.slice(0, image.size)) == len(image.extents)
        assert len(image.slice(image.size // 3, image.size)) <= len(image.extents)


@given(st.data(), st.integers(2, 60))
def test_overlapping_overlays_are_refused_in_any_order(data: st.DataObject, size: int) -> None:
    common = data.draw(st.integers(0, size - 1))
    spans = [(data.draw(st.integers(0, common)), data.draw(st.integers(common + 1, size))) for _ in range(2)]
    overlays = [Overlay(start, Zeros(stop - start)) for start, stop in spans]
    with pytest.raises(ValueError, match=r"overlay at \d+ begins before \d+"):
        apply_overlays(ExtentMap((Zeros(size),)), overlays)


@pytest.mark.parametrize(
    "overlay", [Overlay(9, Literal(b"ab")), Overlay(10, Zeros(1)), Overlay(11, Zeros(5))]
)
def test_overlay_beyond_the_end_is_refused(overlay: Overlay) -> None:
    with pytest.raises(ValueError, match="extends beyond the image of 10 bytes"):
        apply_overlays(ExtentMap((Zeros(10),)), [overlay])


def test_overlay_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="begins before 0"):
        apply_overlays(ExtentMap((Zeros(10),)), [Overlay(-1, Zeros(3))])


def test_empty_overlay_changes_nothing() -> None:
    below = ExtentMap((Zeros(10),))
    assert apply_overlays(below, [Overlay(offset, Literal(b"")) for offset in (0, 4, 4, 10, 99)]) == below


def test_offsets_and_sizes_beyond_4_gib_are_exact() -> None:
    far = 5 * 2**30
    image = apply_overlays(ExtentMap((FileExtent(FILE, 0, FILE.size),)), [Overlay(far, Literal(b"config"))])
    assert image.size == 10 * 2**30
    assert image.slice(far - 2, far + 8) == (
        FileExtent(FILE, far - 2, 2),
        Literal(b"config"),
        FileExtent(FILE, far + 6, 2),
    )
    assert image.slice(image.size - 1, image.size) == (FileExtent(FILE, image.size - 1, 1),)


def test_whole_extents_are_not_copied() -> None:
    """A whole literal is not copied for every range that covers it."""
    literal = Literal(b"x" * 100)
    image = ExtentMap((Zeros(5), literal, Zeros(5)))
    assert image.slice(3, 107)[1] is literal
    assert image.slice(5, 105) == (literal,)
    assert image.slice(5, 105)[0] is literal


@pytest.mark.parametrize("position", [0, 1, 4, 5, 10])
def test_empty_slice_has_no_extents(position: int) -> None:
    assert ExtentMap((Zeros(5), Zeros(5))).slice(position, position) == ()


def test_empty_map_is_empty() -> None:
    assert ExtentMap(()).size == 0
    assert ExtentMap(()).slice(0, 0) == ()
    assert apply_overlays(ExtentMap(()), []) == ExtentMap(())


@given(
    st.sampled_from([FileExtent(FILE, 7, 20), Literal(bytes(range(20))), Zeros(20)]),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_slices_of_an_extent_join_to_the_extent(extent: Extent, one: int, other: int) -> None:
    cuts = list(pairwise([0, *sorted((one, other)), 20]))
    pieces = [extent.slice(start, stop) for start, stop in cuts]
    assert [piece.length for piece in pieces] == [stop - start for start, stop in cuts]
    if isinstance(extent, FileExtent):
        assert pieces == [FileExtent(FILE, 7 + start, stop - start) for start, stop in cuts]
    else:
        assert read(pieces) == read([extent])


def test_repr_does_not_show_literals() -> None:
    secret = "s3cr3t"
    image = ExtentMap((Literal(secret.encode()), Zeros(3)))
    assert secret not in repr(image)
    assert secret not in repr(Overlay(0, Literal(secret.encode())))


def test_an_image_is_remote_if_a_file_of_it_may_lack_bytes() -> None:
    remote = LocalFile(-1, 10, "never opened", cast("Residency", object()))
    around = (Literal(b"x"), Zeros(1), FileExtent(FILE, 0, 1))
    assert not ExtentMap(around).is_remote
    assert not ExtentMap(()).is_remote
    assert ExtentMap((*around, FileExtent(remote, 0, 10))).is_remote


def test_slice_of_a_literal_is_not_a_copy() -> None:
    config = bytes(1000)
    (extent,) = ExtentMap((Literal(config),)).slice(100, 900)
    assert isinstance(extent, Literal)
    assert isinstance(extent.data, memoryview)
    assert extent.data.obj is config
