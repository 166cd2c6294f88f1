from __future__ import annotations

import gzip
import re
import struct
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import BaseImageError, NotFound
from image_service.core.extents import ExtentMap, FileExtent, Zeros
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.base_image import NmstateImage
from image_service.core.images.boot_image import BootImage
from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.netboot import compose_artifact, compose_initrd_addrsize, compose_pxe_initrd
from image_service.core.images.reference import BootArtifact
from image_service.server.http.problem import status_of
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.filesystems.iso_builder import CREATED, build_live_iso, live_files
from tests.core.formats.reading import fixture
from tests.core.images.building import CONFIG, base_file, base_image, bytes_of
from tests.core.images.expected_isos import archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage

LATER = CREATED + timedelta(days=1)
INITRD = gzip.compress(write_archive([Member("etc/coreos-live-initramfs", b"38.1\n")]), mtime=0)
ADDRESS = struct.pack(">Q", 0x02000000)
FILES = {
    **live_files(),
    "generic.ins": b"* minimal lpar ins file\n",
    "images/initrd.addrsize": ADDRESS + struct.pack(">Q", len(INITRD)),
    "images/pxeboot/initrd.img": INITRD,
}
ISO = build_live_iso(FILES)
# As assisted-service makes ramdisks: absolute names, directories, a symbolic link, an executable.
RAMDISK_MEMBERS = [
    Member("etc/assisted/network/host0", b"", 0o040755),
    Member("etc/assisted/network/host0/eth0.nmconnection", b"[connection]\nid=eth0\n"),
    Member("etc/assisted/current", b"network/host0", 0o120777),
    Member("usr/local/bin/pre-network-manager-config.sh", b"#!/bin/bash\n", 0o100755),
]
RAMDISK = gzip.compress(write_archive(RAMDISK_MEMBERS), mtime=0)
NMSTATE = gzip.compress(write_archive([Member("usr/bin/nmstatectl", b"\x7fELF", 0o100755)]), mtime=0)


@pytest.fixture
def base() -> Iterator[BaseImage]:
    with base_image(ISO, architecture="s390x") as image:
        yield image


@contextmanager
def nmstate_image(content: bytes = NMSTATE) -> Iterator[NmstateImage]:
    with base_file(content) as file:
        yield NmstateImage(file, sha256(content).hexdigest())


@pytest.fixture
def nmstate() -> Iterator[NmstateImage]:
    with nmstate_image() as image:
        yield image


def customization(ramdisk: bytes | None = None, config: bytes = CONFIG) -> Customization:
    return Customization(config, (), LATER, ramdisk)


def initrd(base: BaseImage, ramdisk: bytes | None = None, nmstate: NmstateImage | None = None) -> BootImage:
    return compose_pxe_initrd(base, nmstate, customization(ramdisk), "x.img")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


# Boot artifacts


@pytest.mark.parametrize(
    ("which", "name", "path"),
    [
        (BootArtifact.KERNEL, "vmlinuz", "images/pxeboot/vmlinuz"),
        (BootArtifact.INITRD, "initrd.img", "images/pxeboot/initrd.img"),
        (BootArtifact.ROOTFS, "rootfs.img", "images/pxeboot/rootfs.img"),
        (BootArtifact.INS_FILE, "generic.ins", "generic.ins"),
    ],
)
def test_boot_artifact_is_unchanged_and_public(
    base: BaseImage, which: BootArtifact, name: str, path: str
) -> None:
    image = compose_artifact(base, which)
    assert bytes_of(image) == FILES[path]
    assert [type(extent) for extent in image.extents.extents] == [FileExtent]
    assert (image.file_name, image.modified) == (name, CREATED)
    assert (image.is_public, image.is_iso) == (True, False)


def test_old_name_of_an_s390x_kernel_is_found() -> None:
    files = {path: content for path, content in FILES.items() if not path.endswith("vmlinuz")}
    with base_image(build_live_iso({**files, "images/pxeboot/kernel.img": b"an old kernel"})) as base:
        kernel = compose_artifact(base, BootArtifact.KERNEL)
    assert kernel.size == len(b"an old kernel")
    assert kernel.file_name == "vmlinuz"


@pytest.mark.parametrize("which", BootArtifact)
@pytest.mark.parametrize("content", [None, b""], ids=["absent", "empty"])
def test_missing_boot_artifact_is_404(which: BootArtifact, content: bytes | None) -> None:
    kept = {path: data for path, data in FILES.items() if not path.endswith(which.value)}
    (path,) = set(FILES) - set(kept)
    with (
        base_image(build_live_iso(kept if content is None else {**kept, path: content})) as base,
        pytest.raises(NotFound, match=re.escape(f"{base.name} has no {which.value}")) as caught,
    ):
        compose_artifact(base, which)
    assert status_of(caught.value) == 404


def test_etag_of_an_artifact_depends_on_file_and_base(base: BaseImage) -> None:
    with base_image(ISO) as twin, base_image(build_live_iso({**FILES, "z": b""})) as other:
        etags = [
            [compose_artifact(image, which).etag for which in BootArtifact] for image in (base, twin, other)
        ]
    assert etags[0] == etags[1]
    assert len({*etags[0], *etags[2]}) == 2 * len(BootArtifact)


def test_artifacts_of_an_undated_base_are_undated() -> None:
    with base_image(build_live_iso(created=None)) as base:
        assert compose_artifact(base, BootArtifact.ROOTFS).modified is None


# PXE initrd


def test_initrd_is_that_of_the_base_followed_by_the_config(base: BaseImage) -> None:
    image = initrd(base)
    assert bytes_of(image) == padded(INITRD) + padded(archive(CONFIG))
    assert (image.file_name, image.modified) == ("x.img", LATER)
    assert (image.is_public, image.is_iso) == (False, False)


def test_all_members_of_the_initrd_are_readable(base: BaseImage, nmstate: NmstateImage) -> None:
    found = read_members(bytes_of(initrd(base, RAMDISK, nmstate)))
    assert {name: member.data for name, member in found.items()} == {
        "etc/coreos-live-initramfs": b"38.1\n",
        "config.ign": CONFIG,
        "etc/assisted/network/host0/eth0.nmconnection": b"[connection]\nid=eth0\n",
        "usr/local/bin/pre-network-manager-config.sh": b"#!/bin/bash\n",
        "usr/bin/nmstatectl": b"\x7fELF",
    }


@pytest.mark.parametrize("ramdisk", [None, b""])
def test_nmstatectl_is_appended_only_after_a_ramdisk(
    base: BaseImage, nmstate: NmstateImage, ramdisk: bytes | None
) -> None:
    with_it, without = initrd(base, ramdisk, nmstate), initrd(base)
    assert bytes_of(with_it) == bytes_of(without)
    assert with_it.etag == without.etag


some_bytes = st.binary(min_size=1, max_size=9)


@given(some_bytes, some_bytes, st.none() | st.binary(max_size=9), st.none() | some_bytes)
def test_archives_are_aligned_to_four_bytes(
    first: bytes, config: bytes, ramdisk: bytes | None, nmstate: bytes | None
) -> None:
    iso = build_live_iso({**FILES, "images/pxeboot/initrd.img": first})
    with base_image(iso) as base, nmstate_image(nmstate or b"") as archived:
        added = customization(ramdisk, config)
        image = compose_pxe_initrd(base, None if nmstate is None else archived, added, "x.img")
        expected = padded(first) + padded(archive(config))
        if ramdisk:
            expected += padded(ramdisk) + (nmstate or b"")
        assert bytes_of(image) == expected


def test_config_of_any_size_is_accepted(base: BaseImage) -> None:
    """The config has no area to fit, so it is stored, without compression."""
    config = b" " * 2**20
    image = compose_pxe_initrd(base, None, customization(config=config), "x.img")
    assert read_members(bytes_of(image))["config.ign"].data == config
    assert image.size > len(INITRD) + len(config)


def test_kernel_arguments_do_not_change_the_initrd(base: BaseImage) -> None:
    arguments = (KernelArgument(Operation.APPEND, "quiet"),)
    asked = attrs.evolve(customization(), kernel_arguments=arguments)
    assert compose_pxe_initrd(base, None, asked, "x.img").etag == initrd(base).etag


def test_etag_differs_where_the_bytes_do(base: BaseImage, nmstate: NmstateImage) -> None:
    with (
        base_image(build_live_iso({**FILES, "images/pxeboot/initrd.img": INITRD + b"x"})) as other,
        nmstate_image(NMSTATE + b"x") as other_nmstate,
    ):
        images = [
            initrd(base),
            initrd(other),
            compose_pxe_initrd(base, None, customization(config=CONFIG + b" "), "x.img"),
            initrd(base, RAMDISK),
            initrd(base, RAMDISK + b"x"),
            initrd(base, RAMDISK, nmstate),
            initrd(base, RAMDISK, other_nmstate),
            compose(full_canvas(base), customization(), "x.iso"),
            compose_artifact(base, BootArtifact.INITRD),
        ]
        assert len({bytes_of(image) for image in images}) == len(images)
        assert len({image.etag for image in images}) == len(images)
    assert initrd(base, RAMDISK, nmstate).etag == initrd(base, RAMDISK, nmstate).etag


def test_base_without_an_initrd_is_404() -> None:
    files = {path: data for path, data in FILES.items() if not path.endswith("initrd.img")}
    with base_image(build_live_iso(files)) as base, pytest.raises(NotFound, match=r"has no initrd\.img"):
        initrd(base)


# A mount outlives a rolling update: if one of these changes, there must be a new layout (see
# images/layouts.py).
GOLDEN = [
    (
        None,
        '"ea4481a415e6a9ff027f77cb6b3d1adbea5478a1"',
        "a9870c23c716cee6fc5b7f0bf8c50bb48c99fd4ed09add979b2d9635e43a5be6",
    ),
    (
        b"\x1f\x8bramdisk",
        '"993c978ebb0551dfc3ff66ffb7354b75129ac7bf"',
        "38c32166c194b0036c476f5b0777d865072229ad4280b88f4c033a1b43931e0b",
    ),
]


@pytest.mark.parametrize(("ramdisk", "etag", "digest"), GOLDEN)
def test_bytes_and_etag_are_golden(ramdisk: bytes | None, etag: str, digest: str) -> None:
    with base_image(build_live_iso()) as base, nmstate_image(b"\x1f\x8bnmstatectl") as nmstate:
        image = compose_pxe_initrd(base, nmstate, customization(ramdisk), "x.img")
        assert (image.etag, sha256(bytes_of(image)).hexdigest()) == (etag, digest)


# Compared with other readers


@pytest.mark.parametrize("ramdisk", [None, RAMDISK])
def test_coreos_installer_finds_the_config(
    base: BaseImage, nmstate: NmstateImage, ramdisk: bytes | None, tmp_path: Path
) -> None:
    needs_client("coreos-installer")
    path = tmp_path / "initrd.img"
    path.write_bytes(bytes_of(initrd(base, ramdisk, nmstate)))
    assert run_client("coreos-installer", "pxe", "ignition", "unwrap", path) == CONFIG


def test_cpio_unpacks_the_appended_archives(base: BaseImage, nmstate: NmstateImage, tmp_path: Path) -> None:
    needs_client("cpio")
    appended = bytes_of(initrd(base, RAMDISK, nmstate))[len(padded(INITRD)) :]
    parts = [part for part in re.split(rb"(?=\x1f\x8b\x08)", appended) if part]
    names = []
    for part in parts:
        (tmp_path / "part").write_bytes(gzip.decompress(part.rstrip(b"\0") + bytes(4)))
        names.append(run_client("cpio", "--quiet", "--list", f"--file={tmp_path / 'part'}").decode().split())
    assert names[0] == ["config.ign"]
    assert {member.name for member in RAMDISK_MEMBERS} < set(names[1])
    assert names[2] == ["usr", "usr/bin", "usr/bin/nmstatectl"]


# Where an s390x loads it.


def test_addrsize_has_the_address_of_the_base_and_the_size_of_the_initrd(base: BaseImage) -> None:
    for ramdisk in (None, RAMDISK):
        served = initrd(base, ramdisk)
        told = compose_initrd_addrsize(base, served, "x.addrsize")
        assert bytes_of(told) == ADDRESS + len(bytes_of(served)).to_bytes(8, "big")
        assert (told.file_name, told.modified) == ("x.addrsize", LATER)
        assert (told.is_public, told.is_iso) == (False, False)


def test_size_in_the_base_is_ignored() -> None:
    with base_image(build_live_iso({**FILES, "images/initrd.addrsize": ADDRESS})) as base:
        assert bytes_of(compose_initrd_addrsize(base, initrd(base), "x"))[:8] == ADDRESS


def test_real_address_is_kept() -> None:
    with base_image(fixture("embed-areas-2023-07.s390x.iso"), architecture="s390x") as base:
        told = compose_initrd_addrsize(base, initrd(base), "x")
        assert bytes_of(told)[:8] == bytes.fromhex("0000000002000000")
        file = base.iso.files.initrd
        assert file is not None
        assert int.from_bytes(bytes_of(told)[8:], "big") == file.length + len(padded(archive(CONFIG)))


def test_size_has_64_bits(base: BaseImage) -> None:
    huge = BootImage(ExtentMap((Zeros(2**33 + 5),)), '"e"', None, "x.img")
    told = compose_initrd_addrsize(base, huge, "x")
    assert bytes_of(told) == ADDRESS + bytes.fromhex("0000000200000005")
    assert told.modified is None


def test_etag_of_addrsize_depends_on_base_and_size(base: BaseImage) -> None:
    images = [initrd(base), initrd(base, RAMDISK)]
    with base_image(build_live_iso({**FILES, "images/initrd.addrsize": bytes(16)})) as other:
        etags = [compose_initrd_addrsize(base, image, "x").etag for image in images]
        etags.append(compose_initrd_addrsize(other, images[0], "x").etag)
        assert len({*etags, *(image.etag for image in images)}) == 5
        assert compose_initrd_addrsize(base, images[0], "y").etag == etags[0]


@pytest.mark.parametrize("content", [None, b""], ids=["absent", "empty"])
def test_addrsize_of_another_architecture_is_404(content: bytes | None) -> None:
    files = {path: data for path, data in FILES.items() if not path.endswith("addrsize")}
    if content is not None:
        files["images/initrd.addrsize"] = content
    with (
        base_image(build_live_iso(files)) as base,
        pytest.raises(NotFound, match=r"has no initrd\.addrsize"),
    ):
        compose_initrd_addrsize(base, initrd(base), "x")


@pytest.mark.parametrize("length", [1, 7])
def test_truncated_address_is_refused(length: int) -> None:
    with (
        base_image(build_live_iso({**FILES, "images/initrd.addrsize": ADDRESS[:length]})) as base,
        pytest.raises(BaseImageError, match=f"has {length} bytes; 16 are right"),
    ):
        compose_initrd_addrsize(base, initrd(base), "x")
