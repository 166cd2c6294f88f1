"""Images of each byte layout: of this release, and of a made-up later one."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.formats.initrd import read_members
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.layouts import LAYOUTS, newest_layout, oldest_layout
from image_service.core.images.netboot import compose_artifact, compose_initrd_addrsize, compose_pxe_initrd
from image_service.core.images.reference import BootArtifact
from tests.core.formats.filesystems.iso_builder import IGNITION_LENGTH, build_live_iso, live_files
from tests.core.images.building import CONFIG, base_image, bytes_of
from tests.core.images.later_layout import LATER, PRESENT, become_later_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.layouts import ByteLayout

TEXT = random.Random(17).randbytes(IGNITION_LENGTH).hex()  # noqa: S311 - packs to half of its length
LARGE = b'{"ignition":{"version":"3.4.0"},"text":"%s"}' % TEXT[: IGNITION_LENGTH * 5 // 4].encode()
ISO = build_live_iso({**live_files(), "images/initrd.addrsize": bytes(16)})
MODIFIED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def base() -> Iterator[BaseImage]:
    with base_image(ISO) as image:
        yield attrs.evolve(
            image, sha256="0" * 64
        )  # the real one depends on the library that packed its recipe


@pytest.fixture
def _later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    become_later_release(monkeypatch)


def image(base: BaseImage, layout: ByteLayout | None, config: bytes = LARGE) -> BootImage:
    return compose(full_canvas(base), Customization(config, (), MODIFIED), "x.iso", layout)


def ignition_area(base: BaseImage, layout: ByteLayout) -> bytes:
    area = base.coreos.ignition
    return bytes_of(image(base, layout))[area.offset : area.offset + area.length]


# If one changes, there must be a new layout (images/layouts.py).
GOLDEN = {
    3: (
        "f45ebe89a0b4ae991e4d307c8b6d47b48c2b08659f272f4c449f11ea7a0dc1ac",
        '"f005f33bf6148cf7eb267baa30aed38eaf85b45b"',
    ),
    4: (
        "f548a037c7554473abee02cdc7a88be0f2ea8aec5a9f55a6d82f3ecd9d69155f",
        '"cd05dfa1139c600341361e8bf77d1cdd2bd4abc5"',
    ),
}


def test_release_has_layouts_3_and_4() -> None:
    assert {version: layout.version for version, layout in LAYOUTS.items()} == {3: 3, 4: 4}
    assert (oldest_layout().version, newest_layout().version) == (3, 4)


@pytest.mark.parametrize(("version", "golden"), GOLDEN.items())
def test_large_config_has_golden_bytes_and_etag(
    base: BaseImage, version: int, golden: tuple[str, str]
) -> None:
    area = ignition_area(base, LAYOUTS[version])
    assert (sha256(area).hexdigest(), image(base, LAYOUTS[version]).etag) == golden


@pytest.mark.usefixtures("_later_release")
def test_layouts_make_other_bytes_of_the_same_content(base: BaseImage) -> None:
    areas = [ignition_area(base, layout) for layout in LAYOUTS.values()]
    assert len(areas) == len(set(areas)) == 2
    for area in areas:
        assert {name: member.data for name, member in read_members(area).items()} == {"config.ign": LARGE}


@pytest.mark.usefixtures("_later_release")
def test_later_release_makes_the_images_of_the_layout_before(base: BaseImage) -> None:
    assert (oldest_layout().version, newest_layout().version) == (PRESENT, LATER)
    etags = [image(base, layout).etag for layout in (None, LAYOUTS[LATER], LAYOUTS[PRESENT])]
    assert etags[0] == etags[1] != etags[2] == GOLDEN[PRESENT][1]


def initrd(base: BaseImage, layout: ByteLayout | None) -> BootImage:
    return compose_pxe_initrd(base, None, Customization(CONFIG, (), MODIFIED), "x.img", layout)


def addrsize(base: BaseImage, layout: ByteLayout | None) -> BootImage:
    return compose_initrd_addrsize(base, initrd(base, layout), "x.addrsize", layout)


@pytest.mark.usefixtures("_later_release")
@pytest.mark.parametrize("make", [image, initrd, addrsize])
def test_etag_is_that_of_the_layout(
    base: BaseImage, make: Callable[[BaseImage, ByteLayout | None], BootImage]
) -> None:
    etags = [make(base, layout).etag for layout in LAYOUTS.values()]
    assert len(etags) == len(set(etags)) == 2
    assert make(base, None).etag == etags[-1]


# Replicas of two releases serve these at once, and no snapshot pins a layout for them: they never change.
ARTIFACTS = [
    (BootArtifact.KERNEL, "a6f4f6937165fa4ea35a0511a0fc15795b7cb1fc"),
    (BootArtifact.INITRD, "b8d4e1c7f6d01ca250f688978d87b9f49331cb9a"),
    (BootArtifact.ROOTFS, "8165d62e9a46fbf8da3f4d937b4655dd1ac8bb7f"),
]


@pytest.mark.parametrize(("which", "etag"), ARTIFACTS)
def test_boot_artifact_has_one_etag_in_all_releases(base: BaseImage, which: BootArtifact, etag: str) -> None:
    assert compose_artifact(base, which).etag == f'"{etag}"'
