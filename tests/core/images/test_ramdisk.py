"""The ramdisk of a minimal ISO: after the config, or in an area of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import IgnitionTooLarge, RamdiskTooLarge, Unprocessable
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import Member, write_archive
from image_service.core.formats.reading import Span
from image_service.core.images.canvas import derived_minimal_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.server.http.problem import status_of
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import CREATED, IGNITION_LENGTH
from tests.core.formats.reading import reader
from tests.core.images.building import CONFIG, base_image, bytes_of, read
from tests.core.images.expected_isos import (
    DEFAULT,
    RAMDISK_LENGTH,
    ROOTFS_URL,
    URL_ARGUMENT,
    archive,
    expected_derived_minimal,
    expected_spliced_minimal,
    template,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.canvas import Canvas

ISO = live_iso_with_minimal()
TEMPLATE = template()
ARGUMENTS = f"{DEFAULT} {URL_ARGUMENT}"
SCRIPT = Member("etc/network.sh", b"#!/bin/sh\n", 0o100755)
RAMDISK = write_archive([SCRIPT])
"""Plain cpio: the kernel takes it at a multiple of four bytes alone."""
SMALLEST = len(archive(CONFIG, 0))


@pytest.fixture
def base() -> Iterator[BaseImage]:
    with base_image(ISO) as image:
        yield image


@pytest.fixture
def spliced(base: BaseImage) -> Canvas:
    return spliced_minimal_canvas(base, ROOTFS_URL)


@pytest.fixture
def derived(base: BaseImage) -> Iterator[Canvas]:
    with base_image(TEMPLATE) as made:
        yield derived_minimal_canvas(base, made, ROOTFS_URL)


def composed(canvas: Canvas, ramdisk: bytes | None, config: bytes = CONFIG) -> BootImage:
    return compose(canvas, Customization(config, (), CREATED, ramdisk), "x.iso", fixed=(RamdiskTooLarge,))


def area_of(image: BootImage, area: Span) -> bytes:
    return read(image.extents.slice(area.offset, area.offset + area.length))


def sizes_in(error: Unprocessable) -> list[int]:
    return [int(size) for size in re.findall(r"([0-9]+) bytes", error.detail)]


# After the config


@pytest.mark.parametrize("length", range(4))
def test_ramdisk_starts_at_a_multiple_of_four_after_the_config(spliced: Canvas, length: int) -> None:
    config = CONFIG + b" " * length
    first = archive(config, SMALLEST)  # compressed, so of any length
    area = attrs.evolve(spliced.ignition, length=len(first) + 3 + len(RAMDISK))
    image = composed(attrs.evolve(spliced, ignition=area), RAMDISK, config)
    found = {name: member.data for name, member in read_members(area_of(image, area)).items()}
    assert found == {"config.ign": config, SCRIPT.name: SCRIPT.data}
    assert area_of(image, area).index(RAMDISK) % 4 == 0


def test_rest_of_the_area_is_zero(spliced: Canvas) -> None:
    first = archive(CONFIG)
    padded = first + bytes(-len(first) % 4)
    assert bytes_of(composed(spliced, RAMDISK)) == expected_spliced_minimal(ARGUMENTS, padded + RAMDISK)


@pytest.mark.parametrize("ramdisk", [None, b""])
def test_image_without_ramdisk_has_the_config_alone(
    spliced: Canvas, derived: Canvas, ramdisk: bytes | None
) -> None:
    assert bytes_of(composed(spliced, ramdisk)) == expected_spliced_minimal(ARGUMENTS, archive(CONFIG))
    zeros = bytes(RAMDISK_LENGTH)
    assert bytes_of(composed(derived, ramdisk)) == expected_derived_minimal(ARGUMENTS, archive(CONFIG), zeros)


def test_ramdisk_without_config_starts_the_area(spliced: Canvas) -> None:
    assert bytes_of(composed(spliced, RAMDISK, b"")) == expected_spliced_minimal(ARGUMENTS, RAMDISK)
    assert bytes_of(composed(spliced, None, b"")) == expected_spliced_minimal(ARGUMENTS, b"")


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 1000))
def test_fit_of_config_and_ramdisk_matches_naive_model(config: bytes, ramdisk: bytes, capacity: int) -> None:
    smallest = len(archive(config, 0))
    needed = smallest + (-smallest % 4 + len(ramdisk) if ramdisk else 0)
    with base_image(ISO) as base:
        canvas = spliced_minimal_canvas(base, ROOTFS_URL)
        area = Span("Ignition", canvas.ignition.offset, capacity)
        canvas = attrs.evolve(canvas, ignition=area)
        if needed > capacity:
            with pytest.raises(IgnitionTooLarge if smallest > capacity else RamdiskTooLarge):
                composed(canvas, ramdisk, config)
            return
        check_area(area_of(composed(canvas, ramdisk, config), area), config, ramdisk)


def check_area(area: bytes, config: bytes, ramdisk: bytes) -> None:
    """Check that the area has any fitting form of the config's archive, the ramdisk, and zeros."""
    room = (len(area) - len(ramdisk)) // 4 * 4
    forms = {archive(config, capacity) for capacity in (len(area), room, 0)}
    padded = {form + bytes(-len(form) % 4) + ramdisk if ramdisk else form for form in forms}
    assert any(area == form.ljust(len(area), b"\0") for form in padded)


def test_ramdisk_that_does_not_fit_is_refused_with_the_sizes(spliced: Canvas) -> None:
    room = (IGNITION_LENGTH - SMALLEST) // 4 * 4
    assert composed(spliced, bytes(room)).size == spliced.extents.size
    with pytest.raises(RamdiskTooLarge) as caught:
        composed(spliced, bytes(room + 1))
    assert status_of(caught.value) == 422
    assert sizes_in(caught.value) == [room + 1, SMALLEST, IGNITION_LENGTH]


def test_ramdisk_larger_than_the_area_is_refused(spliced: Canvas) -> None:
    with pytest.raises(RamdiskTooLarge) as caught:
        composed(spliced, bytes(2 * IGNITION_LENGTH))
    assert sizes_in(caught.value) == [2 * IGNITION_LENGTH, SMALLEST, IGNITION_LENGTH]


def test_oversized_config_is_not_reported_as_the_ramdisk(spliced: Canvas) -> None:
    canvas = attrs.evolve(spliced, ignition=attrs.evolve(spliced.ignition, length=SMALLEST - 1))
    with pytest.raises(IgnitionTooLarge) as caught:  # whose area is a part of its file here
        composed(canvas, RAMDISK)
    assert sizes_in(caught.value) == [len(CONFIG), SMALLEST, SMALLEST - 1]


# In an area of its own


@pytest.mark.parametrize("length", [1, len(RAMDISK), RAMDISK_LENGTH - 1, RAMDISK_LENGTH])
def test_ramdisk_starts_its_own_area(derived: Canvas, length: int) -> None:
    ramdisk = bytes(range(1, 256)) * 5000
    image = bytes_of(composed(derived, ramdisk[:length]))
    filled = ramdisk[:length].ljust(RAMDISK_LENGTH, b"\0")
    assert image == expected_derived_minimal(ARGUMENTS, archive(CONFIG), filled)


def test_ramdisk_larger_than_its_own_area_moves_behind_the_config(derived: Canvas) -> None:
    ramdisk = bytes(range(1, 256)) * (RAMDISK_LENGTH // 255 + 1)
    image = compose(derived, Customization(CONFIG, (), CREATED, ramdisk), "x.iso")
    moved = read_live_iso(reader(bytes_of(image)), image.size)
    stored = archive(CONFIG, moved.ignition.length)
    assert area_of(image, moved.ignition) == stored + bytes(-len(stored) % 4) + ramdisk
    assert moved.ramdisk is not None
    assert not any(area_of(image, moved.ramdisk))


def test_ramdisk_larger_than_its_own_area_is_refused_with_the_sizes(derived: Canvas) -> None:
    with pytest.raises(RamdiskTooLarge) as caught:
        composed(derived, bytes(RAMDISK_LENGTH + 1))
    assert status_of(caught.value) == 422
    assert sizes_in(caught.value) == [RAMDISK_LENGTH + 1, RAMDISK_LENGTH]


def test_config_has_its_whole_area_beside_a_ramdisk_area(derived: Canvas) -> None:
    canvas = attrs.evolve(derived, ignition=attrs.evolve(derived.ignition, length=SMALLEST))
    image = composed(canvas, bytes(RAMDISK_LENGTH))
    assert area_of(image, canvas.ignition) == archive(CONFIG, SMALLEST)


# Validators


@pytest.mark.parametrize("name", ["spliced", "derived"])
def test_etag_differs_between_ramdisks(name: str, request: pytest.FixtureRequest) -> None:
    canvas: Canvas = request.getfixturevalue(name)
    ramdisks = [None, RAMDISK, RAMDISK + b"\0", RAMDISK[:-1], RAMDISK[:-1] + b"x"]
    images = [composed(canvas, ramdisk) for ramdisk in ramdisks]
    assert len({image.etag for image in images}) == len(ramdisks)
    assert composed(canvas, None).etag == composed(canvas, b"").etag


def test_repr_does_not_show_the_ramdisk(spliced: Canvas) -> None:
    customization = Customization(CONFIG, (), CREATED, b"s3cr3t")
    image = compose(spliced, customization, "x.iso")
    assert "s3cr3t" not in f"{customization!r} {image!r} {image.extents!r}"
