"""Every reader against qemu-img, over random writes; and every reader on damaged images."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import DiskFormat, check_structure
from image_service.core.formats.disk.reading_disks import read_disk
from tests.core.formats.disk.images import (
    Write,
    disk_of,
    join_extents,
    make_image,
    mapped_data,
    qemu_name,
    raw_form,
)
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from collections.abc import Iterable

QCOW2, VMDK, VHD, VHDX = DiskFormat.QCOW2, DiskFormat.VMDK, DiskFormat.VHD, DiskFormat.VHDX


@attrs.frozen
class Kind:
    """A kind of image: its format, qemu-img's options, and how qemu-io may write to it."""

    format: DiskFormat
    options: str = ""
    compresses: int = 0  # bytes of a unit that can be written compressed; 0: none
    only_compressed: bool = False


KINDS = (
    Kind(QCOW2, "", 65536),
    Kind(QCOW2, "cluster_size=512", 512),
    Kind(QCOW2, "cluster_size=4096,refcount_bits=1", 4096),
    Kind(QCOW2, "cluster_size=2M", 2 << 20),
    Kind(QCOW2, "compat=0.10", 65536),
    Kind(QCOW2, "compat=0.10,cluster_size=1024", 1024),
    Kind(QCOW2, "extended_l2=on,cluster_size=16K", 16384),
    Kind(QCOW2, "extended_l2=on", 65536),
    Kind(QCOW2, "lazy_refcounts=on,refcount_bits=64", 65536),
    Kind(QCOW2, "compression_type=zstd,cluster_size=8K", 8192),
    Kind(QCOW2, "preallocation=metadata"),
    Kind(VMDK, "subformat=monolithicSparse"),
    Kind(VMDK, "subformat=streamOptimized", 65536, only_compressed=True),
    Kind(VHD, "subformat=dynamic"),
    Kind(VHD, "subformat=dynamic,force_size=on"),
    Kind(VHD, "subformat=fixed"),
    Kind(VHD, "subformat=fixed,force_size=on"),
    Kind(VHDX, ""),
    Kind(VHDX, "block_size=1M"),
    Kind(VHDX, "subformat=fixed"),
)
SIZES = (512, 65536, 1_000_448, 3 << 20, 5_242_880 + 512)


@st.composite
def writes(draw: st.DrawFn, kind: Kind, size: int) -> list[Write]:
    """A few writes within ``size``; compressed ones first, because they need clusters without data."""
    compressed: dict[int, Write] = {}
    if kind.compresses and kind.compresses <= size:
        units = st.integers(0, size // kind.compresses - 1)
        for unit in draw(st.sets(units, max_size=4)):
            pattern = draw(st.integers(1, 255))
            compressed[unit] = Write(unit * kind.compresses, kind.compresses, pattern, "-c")
    if kind.only_compressed:
        return [Write(one.offset, one.length, one.pattern) for one in compressed.values()]
    lengths = st.one_of(st.integers(1, 4096), st.integers(1, 300_000))
    plain = st.builds(
        lambda offset, length, pattern, option: Write(offset, min(length, size - offset), pattern, option),
        st.integers(0, size - 1),
        lengths,
        st.integers(1, 255),
        st.sampled_from(["", "", "-z"]),
    )
    return [*compressed.values(), *draw(st.lists(plain, max_size=6))]


def check_against_qemu_img(data: st.DataObject, kind: Kind) -> None:
    size = data.draw(st.sampled_from(SIZES))
    name = qemu_name(kind.format)
    with tempfile.TemporaryDirectory() as directory:
        path = make_image(
            Path(directory) / "disk", kind.format, size, kind.options, data.draw(writes(kind, size))
        )
        expected = raw_form(path, name)
        mapped = mapped_data(path, name)
        disk = disk_of(path, kind.format)
    assert disk.virtual_size == len(expected)
    assert "subformat" not in kind.options or f"subformat={disk.subformat}" in kind.options.split(",")
    assert disk.read_at(0, disk.virtual_size + 1) == expected
    extents = list(disk.data_extents())
    if kind.format != VHDX:  # of which qemu-img map knows nothing
        assert extents == (whole_clusters(mapped, kind, size) if "extended_l2" in kind.options else mapped)
    covered = bytearray(expected)
    for offset, length in extents:
        covered[offset : offset + length] = bytes(length)
    assert not any(covered), "there is data outside the extents"
    assert check_structure(disk) == sum(length for _, length in extents)
    offset, length = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    assert disk.read_at(offset, length) == expected[offset : offset + length]


def whole_clusters(extents: Iterable[tuple[int, int]], kind: Kind, size: int) -> list[tuple[int, int]]:
    """Return extents that were parts of clusters as whole ones."""
    cluster = kind.compresses
    numbers = {
        number
        for start, length in extents
        for number in range(start // cluster, -(-(start + length) // cluster))
    }
    return join_extents(
        (number * cluster, min(cluster, size - number * cluster)) for number in sorted(numbers)
    )


def id_of(kind: Kind) -> str:
    return f"{kind.format.value},{kind.options}"


# pytest-twisted cannot run a test that has both parameters and @given: the check inside is given its data.


@pytest.mark.parametrize("kind", KINDS, ids=id_of)
def test_disk_reads_as_qemu_img_converts_it(kind: Kind) -> None:
    settings(max_examples=2, deadline=None)(given(st.data(), st.just(kind))(check_against_qemu_img))()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS, ids=id_of)
def test_disk_reads_as_qemu_img_converts_it_two_hundred_times(kind: Kind) -> None:
    settings(deadline=None)(given(st.data(), st.just(kind))(check_against_qemu_img))()


@cache
def sample(kind: Kind) -> bytes:
    """Return a small image of the kind with data at its start and its end."""
    size = 1_000_448
    with tempfile.TemporaryDirectory() as directory:
        unit = kind.compresses or 512
        option = "-c" if kind.compresses and not kind.only_compressed else ""
        written = [Write(0, unit, 7, option), Write((size // unit - 1) * unit, unit, 9, option)]
        if kind.compresses > size:
            written = [Write(0, 4096, 7)]
        if unit < size // 2 and not kind.only_compressed:
            written.append(Write(2 * unit, 1000, 11))
        return make_image(Path(directory) / "disk", kind.format, size, kind.options, written).read_bytes()


SMALL = [kind for kind in KINDS if "fixed" not in kind.options and len(kind.options) < 40]


@pytest.mark.parametrize("kind", SMALL, ids=id_of)
def test_damaged_image_is_refused_or_read(kind: Kind) -> None:
    settings(max_examples=20, deadline=None)(given(st.data(), st.just(kind))(check_damaged))()


def check_damaged(data: st.DataObject, kind: Kind) -> None:
    """Never another error, and never more reading than an image of this size is worth."""
    image = bytearray(sample(kind))
    places = metadata_places(kind)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.sampled_from(places))
        image[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, image[position] ^ 4]))
    cut = data.draw(st.one_of(st.just(len(image)), st.just(len(image)), st.integers(0, len(image))))
    read_at = MeteredReader(bytes(image[:cut]), 64 << 20)
    try:
        disk = read_disk(kind.format, read_at, cut)
        check_structure(disk)
        for offset in (0, max(0, disk.virtual_size - 5000)):
            assert len(disk.read_at(offset, 5000)) == min(5000, disk.virtual_size - offset)
    except FormatError:
        return


@cache
def metadata_places(kind: Kind) -> list[int]:
    """Return positions of bytes of the tables: words that neither are zeros nor repeat one byte."""
    image = sample(kind)
    words = (range(match.start(), match.end()) for match in re.finditer(rb"[^\0]+", image))
    places = (place for word in words for place in word if len(set(image[word.start : word.stop])) > 1)
    return list(islice(places, 20_000))


@pytest.mark.parametrize("kind", SMALL, ids=id_of)
def test_truncated_image_is_refused_or_has_the_right_bytes(kind: Kind) -> None:
    image = sample(kind)
    whole = read_disk(kind.format, MeteredReader(image, 1 << 30), len(image))
    expected = whole.read_at(0, whole.virtual_size)
    for cut in [*range(0, 2048, 97), *range(2048, len(image), max(1, len(image) // 24)), len(image) - 1]:
        try:
            disk = read_disk(kind.format, MeteredReader(image[:cut], 1 << 30), cut)
            check_structure(disk)
            assert disk.read_at(0, disk.virtual_size) == expected
        except FormatError:
            continue
