from __future__ import annotations

import io
import subprocess
import tarfile
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import KernelArgumentInvalid, NotFound
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.netboot import compose_pxe_initrd
from image_service.core.images.pxe_archive import compose_pxe_archive
from tests.acceptance.clients import needs_client
from tests.core.formats.filesystems.iso_builder import CREATED, build_live_iso, live_files
from tests.core.images.building import CONFIG, base_image, bytes_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage

ROOTFS = bytes(range(256)) * 800 + b"end"
FILES = live_files(rootfs=ROOTFS)
ISO = build_live_iso(FILES)


@pytest.fixture(scope="module")
def base() -> Iterator[BaseImage]:
    with base_image(ISO) as image:
        yield image


def customization(*arguments: str, config: bytes = CONFIG) -> Customization:
    edits = tuple(KernelArgument(Operation.APPEND, argument) for argument in arguments)
    return Customization(config, edits, CREATED)


def unpacked(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:xz") as tar:
        members = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in members.items() if file}


def test_archive_has_kernel_initrd_with_config_and_rootfs(base: BaseImage) -> None:
    archive = compose_pxe_archive(base, customization(), "x.tar.xz")
    initrd = compose_pxe_initrd(base, None, customization(), "initrd.img")
    assert unpacked(bytes_of(archive)) == {
        "vmlinuz": FILES["images/pxeboot/vmlinuz"],
        "initrd.img": bytes_of(initrd),
        "rootfs.img": ROOTFS,
    }
    assert archive.file_name == "x.tar.xz"
    assert not archive.is_public


def test_archive_without_config_has_the_initrd_unchanged(base: BaseImage) -> None:
    archive = compose_pxe_archive(base, customization(config=b""), "x.tar.xz")
    initrd = FILES["images/pxeboot/initrd.img"]
    assert unpacked(bytes_of(archive))["initrd.img"].rstrip(b"\0") == initrd.rstrip(b"\0")


def test_archive_has_a_line_of_requested_kernel_arguments(base: BaseImage) -> None:
    archive = compose_pxe_archive(base, customization("ip=dhcp", "debug"), "x.tar.xz")
    line = unpacked(bytes_of(archive))["kernel-arguments"].decode()
    assert line.endswith(" ip=dhcp debug\n")
    assert "ignition.platform.id=metal" in line
    assert "coreos.liveiso=" not in line


def test_invalid_kernel_argument_is_refused(base: BaseImage) -> None:
    with pytest.raises(KernelArgumentInvalid):
        compose_pxe_archive(base, customization("a;b"), "x.tar.xz")


def test_base_without_kernel_is_refused() -> None:
    files = {name: data for name, data in FILES.items() if not name.endswith("vmlinuz")}
    with base_image(build_live_iso(files)) as base, pytest.raises(NotFound, match="vmlinuz"):
        compose_pxe_archive(base, customization(), "x.tar.xz")


def test_tag_differs_for_each_customization_and_base(base: BaseImage) -> None:
    with base_image(build_live_iso(live_files(rootfs=b"other"))) as other:
        customizations = [customization(), customization("a"), customization("b"), customization(config=b"")]
        tags = [compose_pxe_archive(base, each, "x").etag for each in customizations]
        tags.append(compose_pxe_archive(other, customization(), "x").etag)
    assert len(set(tags)) == len(tags)
    assert compose_pxe_archive(base, customization("a"), "x").etag == tags[1]


@given(st.data())
def test_ranges_make_up_the_archive(base: BaseImage, data: st.DataObject) -> None:
    image = compose_pxe_archive(base, customization(), "x.tar.xz")
    whole = bytes_of(image)
    cuts = data.draw(st.lists(st.integers(0, image.size), max_size=8))
    bounds = [0, *sorted(cuts), image.size]
    pieces = [read(image.extents.slice(start, stop)) for start, stop in pairwise(bounds)]
    assert b"".join(pieces) == whole


def test_tar_and_xz_accept_the_archive(base: BaseImage, tmp_path: Path) -> None:
    needs_client("tar")
    needs_client("xz")
    path = tmp_path / "pxe.tar.xz"
    path.write_bytes(bytes_of(compose_pxe_archive(base, customization("ip=dhcp"), "pxe.tar.xz")))
    subprocess.run(["xz", "--test", str(path)], check=True)
    subprocess.run(["tar", "-C", str(tmp_path), "-xJf", str(path)], check=True)
    assert (tmp_path / "rootfs.img").read_bytes() == ROOTFS
    assert (tmp_path / "vmlinuz").read_bytes() == FILES["images/pxeboot/vmlinuz"]
