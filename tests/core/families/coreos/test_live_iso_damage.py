from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import IGNINFO_JSON, KARGS_JSON
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.iso9660.volume import read_iso9660
from tests.core.formats.filesystems.iso_builder import KARGS_FILES, SECTOR, build_live_iso
from tests.core.formats.reading import FIXTURES, MeteredReader, fixture, read_layout, reader

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN: Mapping[str, Any] = (
    json.loads((FIXTURES / "golden.json").read_text())["iso"] if FIXTURES.exists() else {}
)


@given(st.binary(max_size=4096))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_layout(data)


def windows(image: bytes) -> list[tuple[int, int]]:
    """Return the ranges worth damaging: descriptors, directories, JSON and areas."""
    iso = read_iso9660(reader(image), len(image))
    files = [iso.find_file(path) for path in (KARGS_JSON, IGNINFO_JSON, *KARGS_FILES)]
    return [(32672, 26 * SECTOR), *((file.offset, file.offset + file.length) for file in files)]


PRISTINE = build_live_iso()
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(windows(PRISTINE)).flatmap(lambda window: st.integers(*window)),
        st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 4, bytes(4), b"\x80", b"9"])),
    ),
    min_size=1,
    max_size=6,
)


def damaged(image: bytes, mutations: list[tuple[int, bytes]]) -> bytes:
    broken = bytearray(image)
    for offset, data in mutations:
        broken[offset : offset + len(data)] = data
    return bytes(broken)


def check_refused_or_safe(image: bytes) -> None:
    """Check that an image is refused, or its areas can be laid over."""
    try:
        layout = read_live_iso(MeteredReader(image, 80 * 2**20), len(image))
    except FormatError as refused:
        refused.detail.encode()
        return
    areas = layout.kernel_arguments
    spans = [(layout.ignition.offset, layout.ignition.length)]
    spans += [(area.offset, areas.size) for area in areas.areas] if areas else []
    ends = [0, *(offset + length for offset, length in sorted(spans)), len(image)]
    begins = [0, *(offset for offset, _ in sorted(spans)), len(image)]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


@given(MUTATIONS)
@example([(16 * SECTOR + 80, b"\xff\xff\xff\xff")])
@example([(16 * SECTOR + 156 + 10, b"\xff\xff\xff\xff")])
def test_damaged_image_is_refused_or_safe(mutations: list[tuple[int, bytes]]) -> None:
    check_refused_or_safe(damaged(PRISTINE, mutations))


@pytest.mark.skipif(not GOLDEN, reason=f"{FIXTURES} is not there")
@given(
    # Drawn, not parametrized: pytest-twisted would wrap the one inner test again for each parameter.
    name=st.sampled_from(sorted(GOLDEN) or [""]),
    mutations=st.lists(
        st.tuples(st.integers(32672, 120 * SECTOR), st.binary(min_size=1, max_size=8)), min_size=1, max_size=8
    ),
)
def test_damaged_real_image_is_refused_or_safe(name: str, mutations: list[tuple[int, bytes]]) -> None:
    check_refused_or_safe(damaged(fixture(name), mutations))


@given(st.integers(0, len(PRISTINE) - 1))
def test_truncated_image_is_refused(length: int) -> None:
    with pytest.raises(FormatError):
        read_layout(PRISTINE[:length])
