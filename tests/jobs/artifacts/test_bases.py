from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import UnknownBaseImage
from image_service.core.families.coreos.stream_metadata import Release, StreamArtifact, StreamDisk
from image_service.jobs.model import ComposeBase, ImageType
from image_service.server.streams.stream import StreamRelease
from tests.jobs.artifacts.composing_images import disk_entry, iso_entry

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.artifacts.composing_images import Artifacts

COMPOSED = tuple(each for each in ImageType if not each.is_disk)
DISKS = tuple(each for each in ImageType if each.is_disk)


def file(name: str) -> StreamArtifact:
    return StreamArtifact(f"http://origin.example/{name}", "ab" * 32)


def release(version: str, *disks: StreamDisk) -> StreamRelease:
    date = datetime(2026, 1, 1, tzinfo=UTC)
    return StreamRelease(
        "stable", Release("x86_64", version, date, file("iso"), rootfs=file("rootfs"), disks=disks)
    )


QEMU = StreamDisk("qemu", "qcow2", file("qemu"))
METAL = StreamDisk("metal", "raw", file("metal"))
VMWARE = StreamDisk("vmware", "ova", file("vmware"))


def offer_stream(artifacts: Artifacts, *releases: StreamRelease) -> None:
    artifacts.streams.desired = releases
    artifacts.isos.entries = [each.entry for each in releases]


def test_distributions_have_architectures_and_image_types(artifacts: Artifacts, tmp_path: Path) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19"), iso_entry("9.4.1-0", "4.9", architecture="s390x")]
    artifacts.disk_entries = [disk_entry(tmp_path / "disk", "4.19")]
    assert artifacts.bases.distributions() == {
        "rhcos-4.9": {"s390x": (ImageType.LIVE_INSTALLER, ImageType.PXE_TAR_XZ)},
        "rhcos-4.19": {"x86_64": tuple(ImageType)},
    }
    assert list(artifacts.bases.distributions()) == ["rhcos-4.9", "rhcos-4.19"]


def test_stream_is_a_distribution(artifacts: Artifacts) -> None:
    offer_stream(artifacts, release("44.1.2.3"))
    assert artifacts.bases.distributions() == {"stable": {"x86_64": COMPOSED}}
    assert artifacts.bases.find("stable", "x86_64", ImageType.LIVE_INSTALLER) == ComposeBase(
        "44.1.2.3", "x86_64"
    )


def test_alias_is_a_distribution_if_its_target_is_one(artifacts: Artifacts) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    artifacts.aliases = {"debian-12": "4.19", "debian-13": "4.20"}
    assert set(artifacts.bases.distributions()) == {"rhcos-4.19", "debian-12"}
    found = artifacts.bases.find("debian-12", "x86_64", ImageType.PXE_TAR_XZ)
    assert found.version == "9.6.1-0"


@pytest.mark.parametrize(
    ("image_type", "platform", "image_format"),
    [
        (ImageType.GUEST_IMAGE, "qemu", "qcow2"),
        (ImageType.VSPHERE, "vmware", "ova"),
        (ImageType.VSPHERE_OVA, "vmware", "ova"),
        (ImageType.AZURE, "metal", "raw"),
        (ImageType.MINIMAL_RAW, "metal", "raw"),
    ],
    ids=str,
)
def test_disk_of_the_platform_is_preferred_to_metal(
    artifacts: Artifacts, image_type: ImageType, platform: str, image_format: str
) -> None:
    offer_stream(artifacts, release("44.1.2.3", METAL, QEMU, VMWARE))
    base = artifacts.bases.find("stable", "x86_64", image_type)
    assert base == ComposeBase("44.1.2.3", "x86_64", platform, image_format)
    entry = artifacts.bases.disk(base)
    assert entry.url == f"http://origin.example/{platform}"
    assert entry.file_name == f"rhcos-{platform}-disk-44.1.2.3-x86_64.img"


def test_disk_is_of_the_present_release_of_the_stream(artifacts: Artifacts) -> None:
    older, newer = release("44.1.2.3", QEMU), release("44.1.2.4", QEMU)
    offer_stream(artifacts, older, newer)
    assert artifacts.bases.find("stable", "x86_64", ImageType.GUEST_IMAGE).version == "44.1.2.3"
    offer_stream(artifacts, newer, older)
    assert artifacts.bases.find("stable", "x86_64", ImageType.GUEST_IMAGE).version == "44.1.2.4"


def test_base_of_an_older_release_stays_until_it_is_dropped(artifacts: Artifacts) -> None:
    offer_stream(artifacts, release("44.1.2.3", QEMU))
    base = artifacts.bases.find("stable", "x86_64", ImageType.GUEST_IMAGE)
    offer_stream(artifacts, release("44.1.2.4", QEMU), release("44.1.2.3", QEMU))
    assert artifacts.bases.disk(base).version == "44.1.2.3"
    assert len(artifacts.bases.disk_names) == 2
    offer_stream(artifacts, release("44.1.2.4", QEMU))
    with pytest.raises(UnknownBaseImage, match=r"44\.1\.2\.3"):
        artifacts.bases.disk(base)


def test_configured_disk_needs_no_iso(artifacts: Artifacts, tmp_path: Path) -> None:
    artifacts.disk_entries = [disk_entry(tmp_path / "disk", "4.19")]
    assert artifacts.bases.distributions() == {"rhcos-4.19": {"x86_64": DISKS}}


@pytest.mark.parametrize(
    ("distribution", "architecture"),
    [
        ("rhcos-4.20", "x86_64"),
        ("4.19", "x86_64"),
        ("rhcos-4.19", "aarch64"),
        ("rhcos-9.6.1-0", "x86_64"),
        ("", ""),
    ],
)
def test_unknown_distribution_is_refused(artifacts: Artifacts, distribution: str, architecture: str) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    with pytest.raises(UnknownBaseImage):
        artifacts.bases.find(distribution, architecture, ImageType.LIVE_INSTALLER)


def test_rootfs_of_a_stream_is_at_its_origin(artifacts: Artifacts) -> None:
    offer_stream(artifacts, release("44.1.2.3"))
    url = artifacts.bases.rootfs_url(ComposeBase("44.1.2.3", "x86_64"))
    assert url == "http://origin.example/rootfs"
    assert not artifacts.bases.rootfs_url(ComposeBase("9.6.1-0", "x86_64"))


def test_rootfs_without_a_stream_is_at_the_byte_server(artifacts: Artifacts) -> None:
    artifacts.byte_server_url = "https://images.example"
    url = artifacts.bases.rootfs_url(ComposeBase("9.6.1-0", "x86_64"))
    assert url == "https://images.example/boot-artifacts/9.6.1-0/x86_64/rootfs.img"


def test_size_of_a_disk_is_known_once_it_is_fetched(artifacts: Artifacts) -> None:
    bases, base = artifacts.bases, ComposeBase("1", "x86_64", "metal", "raw")
    assert bases.disk_bytes(base) == 0
    bases.set_disk_bytes(base, 7)
    assert bases.disk_bytes(base) == 7
