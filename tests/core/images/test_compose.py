from __future__ import annotations

import json
import os
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.files.local_file import LocalFile
from image_service.core.errors import (
    IgnitionTooLarge,
    KernelArgumentInvalid,
    KernelArgumentsTooLarge,
)
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.families.coreos.kargs_areas import MAX_AREA
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.initrd import read_members
from image_service.core.images.base_image import BaseImage
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.server.http.problem import status_of
from tests.core.formats.filesystems.iso_builder import (
    CREATED,
    IGNITION_LENGTH,
    KERNEL_ARGUMENTS,
    build_live_iso,
    live_files,
    write_sparse_live_iso,
)
from tests.core.formats.reading import reader
from tests.core.images.building import CONFIG, base_image, bytes_of, read
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.boot_image import BootImage

ISO = build_live_iso()
MODIFIED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
EARLIER, LATER = CREATED - timedelta(days=1), CREATED + timedelta(days=1)
TEXT = random.Random(5).randbytes(600_000).hex()  # noqa: S311 - text that packs to half of its length


@pytest.fixture
def base() -> Iterator[BaseImage]:
    with base_image(ISO) as image:
        yield image


def customization(
    config: bytes = CONFIG, *arguments: str, modified: datetime | None = MODIFIED
) -> Customization:
    operations = tuple(KernelArgument(Operation.APPEND, argument) for argument in arguments)
    return Customization(config, operations, modified)


def composed(base: BaseImage, config: bytes = CONFIG, *arguments: str) -> BootImage:
    return compose(full_canvas(base), customization(config, *arguments), "x.iso")


def big_config(length: int) -> bytes:
    return json.dumps({"ignition": {"version": "3.4.0"}, "text": TEXT[:length]}).encode()


def ignition_area(base: BaseImage, image: bytes) -> bytes:
    area = base.coreos.ignition
    return image[area.offset : area.offset + area.length]


def kargs_areas(base: BaseImage, image: bytes) -> list[bytes]:
    areas = base.coreos.kernel_arguments
    assert areas is not None
    return [image[area.offset : area.offset + areas.size] for area in areas.areas]


# A mount outlives a rolling update: if one of these changes, there must be a new layout (see
# images/layouts.py).
GOLDEN_BASE = "1b90593e9f14c5b408c548adad927e4db9e81259afa093dc503e36d5410d4216"
GOLDEN = [
    (
        (),
        '"844c0401cf0ee9b8eacd6505985d835d7fda979e"',
        "25a4b1ee11cd01dcfd43867a48065f252ac6e364ebdde704f2f16fbfcac6e24b",
    ),
    (
        ("quiet",),
        '"64dc71c2135bb7d5441ff8645e6ec20d289beeae"',
        "c2a2de93a62fb6f179fb409de371e7e167972a73f47c7c507030c9a47bec6390",
    ),
    (
        ("rd.debug", "console=ttyS0,115200n8"),
        '"625cedda31660b371497d56227bd3d6299ac7706"',
        "36faf30d2c5c2b22b1d22110f561e8897f1edefa915e178acbb3b83d3d49829a",
    ),
]


@pytest.mark.parametrize(("arguments", "etag", "digest"), GOLDEN)
def test_bytes_and_etag_are_golden(
    base: BaseImage, arguments: tuple[str, ...], etag: str, digest: str
) -> None:
    assert base.sha256 == GOLDEN_BASE, "it is the test's own base image that has changed"
    image = compose(full_canvas(base), customization(CONFIG, *arguments), "x.iso")
    assert (image.etag, sha256(bytes_of(image)).hexdigest()) == (etag, digest)


def test_only_the_areas_change(base: BaseImage) -> None:
    image = bytearray(bytes_of(composed(base, CONFIG, "quiet")))
    assert len(image) == len(ISO)
    ignition, kargs = base.coreos.ignition, base.coreos.kernel_arguments
    assert kargs is not None
    areas = [(ignition.offset, ignition.length), *((area.offset, kargs.size) for area in kargs.areas)]
    for offset, length in areas:
        assert image[offset : offset + length] != ISO[offset : offset + length]
        image[offset : offset + length] = ISO[offset : offset + length]
    assert image == ISO


def test_config_is_the_only_member_and_the_rest_of_its_area_is_zero(base: BaseImage) -> None:
    area = ignition_area(base, bytes_of(composed(base)))
    assert len(area) == IGNITION_LENGTH
    assert {name: member.data for name, member in read_members(area).items()} == {"config.ign": CONFIG}
    assert not area[1000:].strip(b"\0")


def test_areas_are_unchanged_without_arguments(base: BaseImage) -> None:
    assert kargs_areas(base, bytes_of(composed(base))) == kargs_areas(base, ISO)


def test_every_boot_config_gets_the_same_arguments(base: BaseImage) -> None:
    areas = kargs_areas(base, bytes_of(composed(base, CONFIG, "quiet", 'x="a b"')))
    expected = f'{KERNEL_ARGUMENTS} quiet x="a b"\n'.encode()
    assert len(areas) == 2
    assert areas == [expected.ljust(len(areas[0]), b"#")] * 2


def test_image_reads_back_as_customized(base: BaseImage) -> None:
    image = bytes_of(composed(base, CONFIG, "quiet"))
    iso = read_live_iso(lambda offset, length: image[offset : offset + length], len(image))
    assert attrs.evolve(iso, customized=None) == base.iso
    assert iso.customized is not None


def test_same_inputs_give_the_same_image() -> None:
    """The result depends on the inputs alone, not on the descriptor or the process."""
    images = []
    for _ in range(2):
        with base_image(ISO) as base:
            image = composed(base, CONFIG, "quiet")
            images.append((image.etag, bytes_of(image)))
    assert images[0] == images[1]


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (CONFIG + b" ", ()),
        (CONFIG.replace(b"core", b"cor3"), ()),
        (CONFIG, ("quiet",)),
        (CONFIG, ("quiet", "debug")),
        (CONFIG, ("debug", "quiet")),
        (CONFIG, ("quiet", "quiet")),
    ],
)
def test_etag_differs_between_customizations(
    base: BaseImage, config: bytes, arguments: tuple[str, ...]
) -> None:
    others = [(), ("quiet",), ("debug",), ("quiet", "debug", "x")]
    etags = [
        composed(base, CONFIG, *other).etag for other in others if (CONFIG, other) != (config, arguments)
    ]
    assert composed(base, config, *arguments).etag not in etags


configs = st.integers(0, 4).map(lambda minor: b'{"ignition": {"version": "3.%d.0"}}' % minor)
arguments = st.lists(st.sampled_from(["a", "b", "a b", 'a="b"']), max_size=3)


@given(configs, configs, arguments, arguments)
def test_etag_differs_exactly_where_the_bytes_do(
    config: bytes, other_config: bytes, some: list[str], others: list[str]
) -> None:
    with base_image(ISO) as base:
        one, other = composed(base, config, *some), composed(base, other_config, *others)
        assert (one.etag == other.etag) == (bytes_of(one) == bytes_of(other))


def test_etag_depends_on_the_base() -> None:
    other = build_live_iso(live_files(rootfs=b"another rootfs\n"))
    with base_image(ISO) as one, base_image(other) as two:
        assert composed(one).etag != composed(two).etag


def test_etag_is_strong_and_quoted(base: BaseImage) -> None:
    assert re.fullmatch(r'"[0-9a-f]{40}"', composed(base).etag)


def test_etag_depends_on_bytes_only(base: BaseImage) -> None:
    relabelled = attrs.evolve(base, version="other", needs_nmstate=True, disconnected=True)
    images = [
        compose(full_canvas(base), customization(), "x.iso"),
        compose(full_canvas(base), customization(), "y.iso"),
        compose(full_canvas(base), customization(modified=None), "x.iso"),
        compose(full_canvas(base), customization(modified=LATER), "x.iso"),
        compose(full_canvas(relabelled), customization(), "x.iso"),
    ]
    assert len({image.etag for image in images}) == 1
    assert len({bytes_of(image) for image in images}) == 1
    assert [image.file_name for image in images[:2]] == ["x.iso", "y.iso"]


@pytest.mark.parametrize(
    ("created", "modified", "expected"),
    [
        (CREATED, LATER, LATER),
        (CREATED, EARLIER, CREATED),
        (CREATED, CREATED, CREATED),
        (None, LATER, LATER),
        (CREATED, None, None),
        (None, None, None),
        (CREATED, LATER.replace(microsecond=999_999), LATER),
        (CREATED, LATER.astimezone(timezone(timedelta(hours=9))), LATER),
    ],
)
def test_date_is_the_later_of_both_or_absent(
    created: datetime | None, modified: datetime | None, expected: datetime | None
) -> None:
    with base_image(build_live_iso(created=created)) as base:
        found = compose(full_canvas(base), customization(modified=modified), "x.iso").modified
        assert found == expected
        assert found is None or found.tzinfo is UTC


def test_config_larger_than_its_area_is_compressed(base: BaseImage) -> None:
    config = big_config(450_000)
    area = ignition_area(base, bytes_of(composed(base, config)))
    assert read_members(area)["config.ign"].data == config
    assert len(area) == IGNITION_LENGTH


def test_large_incompressible_config_fits_a_large_area() -> None:
    files = {**live_files(), "images/ignition.img": bytes(3 * 2**20)}
    config = big_config(1_200_000)
    with base_image(build_live_iso(files)) as base:
        area = ignition_area(base, bytes_of(composed(base, config)))
        assert read_members(area)["config.ign"].data == config


@pytest.mark.parametrize("length", [1_000_000, soaked(3 << 20)])
def test_oversized_config_moves_behind_the_iso(base: BaseImage, length: int) -> None:
    config = big_config(length)
    image = composed(base, config, "quiet")
    content = bytes_of(image)
    moved = read_live_iso(reader(content), len(content))
    assert moved.ignition.offset >= base.file.size
    area = content[moved.ignition.offset : moved.ignition.offset + moved.ignition.length]
    assert read_members(area)["config.ign"].data == config
    assert ignition_area(base, content) == bytes(IGNITION_LENGTH)
    assert image.areas[-1].start == moved.ignition.offset
    assert image.etag not in {composed(base, config).etag, composed(base, config + b" ", "quiet").etag}
    assert image.etag == composed(base, config, "quiet").etag
    assert moved.kernel_arguments is not None
    assert moved.kernel_arguments.read(reader(content)) == f"{KERNEL_ARGUMENTS} quiet"


@pytest.mark.parametrize("length", [1_000_000, 3 << 20])
def test_oversized_config_is_refused_if_its_area_is_a_part_of_a_file(length: int) -> None:
    files = {**live_files(), "images/cdboot.img": bytes(2 * IGNITION_LENGTH)}
    info = {"file": "images/cdboot.img", "offset": 1000, "length": IGNITION_LENGTH}
    files["coreos/igninfo.json"] = json.dumps(info).encode()
    config = big_config(length)
    with base_image(build_live_iso(files)) as base, pytest.raises(IgnitionTooLarge) as caught:
        composed(base, config)
    assert "cannot move" in caught.value.detail
    assert "is not the whole of images/ignition.img" in caught.value.detail
    sizes = [int(size) for size in re.findall(r"([0-9]+) bytes", caught.value.detail)]
    assert sizes[0] == len(config)
    assert sizes[-1] == IGNITION_LENGTH
    assert status_of(caught.value) == 422


def test_config_may_fill_its_area() -> None:
    """A config has a smallest area that it fits; with one byte less it moves."""
    smallest = next(length for length in range(100, 400) if _fits(length))
    assert all(_fits(length) for length in range(smallest, smallest + 200, 7))
    with base_image(_iso_with_area(smallest)) as base:
        area = ignition_area(base, bytes_of(composed(base)))
        assert read_members(area)["config.ign"].data == CONFIG


def _fits(length: int) -> bool:
    with base_image(_iso_with_area(length)) as base:
        return composed(base).size == base.file.size


def _iso_with_area(length: int) -> bytes:
    return build_live_iso({**live_files(), "images/ignition.img": bytes(length)})


@pytest.mark.parametrize("argument", ["a;b", "$x", 'a="b', "", "a\nb", "ä"])
def test_argument_that_a_boot_loader_would_change_is_refused(base: BaseImage, argument: str) -> None:
    with pytest.raises(KernelArgumentInvalid) as caught:
        composed(base, CONFIG, "quiet", argument)
    assert status_of(caught.value) == 422


def test_arguments_may_fill_their_area_and_then_its_file_moves(base: BaseImage) -> None:
    areas = base.coreos.kernel_arguments
    assert areas is not None
    room = areas.size - len(KERNEL_ARGUMENTS) - len(" ") - len("\n")
    assert kargs_areas(base, bytes_of(composed(base, CONFIG, "x" * room)))[0].endswith(b"x\n")
    for length in (room + 1, MAX_AREA - len(KERNEL_ARGUMENTS) - 2):
        content = bytes_of(composed(base, CONFIG, "x" * length))
        moved = read_live_iso(reader(content), len(content)).kernel_arguments
        assert moved is not None
        assert (moved.size, moved.default) == (MAX_AREA, KERNEL_ARGUMENTS)
        assert moved.read(reader(content)) == f"{KERNEL_ARGUMENTS} {'x' * length}"
        assert min(area.offset for area in moved.areas) >= base.file.size
        assert ignition_area(base, content) == ignition_area(base, bytes_of(composed(base)))


def test_arguments_longer_than_a_kernel_reads_are_refused(base: BaseImage) -> None:
    areas = base.coreos.kernel_arguments
    assert areas is not None
    with pytest.raises(KernelArgumentsTooLarge) as caught:
        composed(base, CONFIG, "x" * (MAX_AREA - len(KERNEL_ARGUMENTS) - 1))
    assert (
        f"take {MAX_AREA} bytes, their embed areas hold {areas.size - 1}, and cannot move"
        in caught.value.detail
    )
    assert f"hold {MAX_AREA - 1}" in caught.value.detail


def test_arguments_without_an_area_are_refused() -> None:
    files = {name: data for name, data in live_files().items() if name != "coreos/kargs.json"}
    with base_image(build_live_iso(files)) as base:
        assert base.coreos.kernel_arguments is None
        composed(base)
        with pytest.raises(
            KernelArgumentsTooLarge, match=r"2 kernel arguments .*x86_64.*\(0 bytes\)"
        ) as caught:
            composed(base, CONFIG, "quiet", "debug")
        assert status_of(caught.value) == 422


@pytest.mark.parametrize("arguments", [(), ("quiet",)])
def test_customized_base_is_overwritten_with_default_arguments(
    base: BaseImage, arguments: tuple[str, ...]
) -> None:
    """The result equals that of the pristine base."""
    first = bytes_of(composed(base, big_config(200_000), "first", "x=y"))
    with base_image(first, disconnected=True) as customized:
        assert customized.coreos.customized is not None
        second = composed(customized, CONFIG, *arguments)
        assert bytes_of(second) == bytes_of(composed(base, CONFIG, *arguments))


def test_customized_base_without_kargs_areas_is_overwritten() -> None:
    files = {name: data for name, data in live_files().items() if name != "coreos/kargs.json"}
    with base_image(build_live_iso(files)) as base:
        first, expected = bytes_of(composed(base, big_config(9))), bytes_of(composed(base))
    with base_image(first, disconnected=True) as customized:
        assert bytes_of(composed(customized)) == expected


def test_area_beyond_4_gib_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "big.iso"
    write_sparse_live_iso(path, ignition_offset := 5 * 2**30)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = path.stat().st_size
        iso = read_live_iso(lambda offset, length: os.pread(descriptor, length, offset), size)
        base = BaseImage(LocalFile(descriptor, size, str(path)), iso, "0" * 64, "1", "x86_64")
        image = composed(base, CONFIG, "quiet")
        assert image.size == size > ignition_offset
        area = read(image.extents.slice(ignition_offset, ignition_offset + IGNITION_LENGTH))
        assert read_members(area)["config.ign"].data == CONFIG
        assert read(image.extents.slice(ignition_offset - 2048, ignition_offset)) == bytes(2048)
    finally:
        os.close(descriptor)


def test_repr_does_not_show_secrets(base: BaseImage) -> None:
    config = b'{"ignition": {"version": "3.2.0"}, "pull": "s3cr3t"}'
    image = composed(base, config)
    assert "s3cr3t" not in f"{customization(config)!r} {image!r} {image.extents!r}"
