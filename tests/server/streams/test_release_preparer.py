from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.base_file import BaseFile
from image_service.core.errors import Unavailable
from image_service.core.families.coreos.stream_metadata import StreamArtifact, select_releases
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.opening import open_base_image
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES
from image_service.server.streams.release_preparer import MirroredFile, MirroredRelease, ReleasePreparer
from image_service.server.streams.stream import StreamRelease
from image_service.settings.base_images import DownloadSettings
from tests.core.families.coreos.streams import stream
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.server.catalog.origin import Origin, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage

FILES = live_files(rootfs=b"rootfs data\n" * 200_000)
ISO = build_live_iso(FILES)
PARTS = {
    "kernel": FILES["images/pxeboot/vmlinuz"],
    "initramfs": FILES["images/pxeboot/initrd.img"],
    "rootfs": FILES["images/pxeboot/rootfs.img"],
}
SIGNATURE = b"\x89\x02\x33 signature of "


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def desired(origin: Origin) -> StreamRelease:
    """A release as its stream lists it: with correct digests, and signatures of all files."""
    (release,) = select_releases(stream(origin=origin.url("")), ["x86_64"])
    artifacts: dict[str, Any] = {}
    for name, content in {"iso": ISO, **PARTS}.items():
        artifact: StreamArtifact = getattr(release, name)
        artifacts[name] = attrs.evolve(artifact, sha256=sha256(content))
        assert artifact.signature is not None
        origin.serve(artifact.signature.removeprefix(origin.url("")), Reply(SIGNATURE + name.encode()))
    release = attrs.evolve(release, **artifacts)
    return StreamRelease("stable", release)


@pytest.fixture
def base(desired: StreamRelease, tmp_path: Path) -> Iterator[BaseImage]:
    path = tmp_path / desired.entry.file_name
    path.write_bytes(ISO)
    opened = open_base_image(desired.entry, path, tmp_path / "rhcos-sidecar.json", Interruption())
    yield opened
    os.close(opened.file.descriptor)


def preparer(directory: Path) -> ReleasePreparer:
    return ReleasePreparer(directory, OriginClient.from_settings(DownloadSettings()), Interruption())


def content(release: MirroredRelease, file: MirroredFile) -> bytes:
    return os.pread(release.base.file.descriptor, file.length, file.offset)


def test_each_file_has_its_digest_and_signature(
    desired: StreamRelease, base: BaseImage, tmp_path: Path
) -> None:
    release = preparer(tmp_path).prepare(desired, base)
    assert content(release, release.iso) == ISO
    assert {name: content(release, file) for name, file in release.pxe.items()} == PARTS
    for name, file in {"iso": release.iso, **release.pxe}.items():
        assert file.name == getattr(desired.release, name).name
        assert file.sha256 == sha256(content(release, file))
        assert (file.signature, file.is_signature_pending) == (SIGNATURE + name.encode(), False)
    assert release.published.pxe["rootfs"].sha256 == sha256(PARTS["rootfs"])
    assert release.published.version == desired.release.version


def test_signature_of_other_bytes_is_not_fetched(
    desired: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path
) -> None:
    assert desired.release.kernel is not None
    kernel = attrs.evolve(desired.release.kernel, sha256="0" * 64)
    other = attrs.evolve(desired, release=attrs.evolve(desired.release, kernel=kernel))
    release = preparer(tmp_path).prepare(other, base)
    assert release.pxe["kernel"].sha256 == sha256(PARTS["kernel"])
    assert (release.pxe["kernel"].signature, release.pxe["kernel"].is_signature_pending) == (None, False)
    assert len(origin.requests) == 3


def test_stream_without_signatures_causes_no_fetch(
    desired: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path
) -> None:
    iso = attrs.evolve(desired.release.iso, signature=None)
    bare = attrs.evolve(desired.release, iso=iso, kernel=None, initramfs=None, rootfs=None)
    release = preparer(tmp_path).prepare(attrs.evolve(desired, release=bare), base)
    assert origin.requests == []
    assert [file.name for file in release.files] == [
        desired.release.iso.name,
        "coreos-44.1.2.3-live-kernel.x86_64",
        "coreos-44.1.2.3-live-initramfs.x86_64.img",
        "coreos-44.1.2.3-live-rootfs.x86_64.img",
    ]


def test_digests_and_signatures_are_stored(
    desired: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = preparer(tmp_path).prepare(desired, base)
    monkeypatch.setattr(BaseFile, "sha256", None)
    assert preparer(tmp_path).prepare(desired, base) == first
    assert len(origin.requests) == 4


@pytest.mark.parametrize(
    "answer",
    [
        Reply(status=404),
        Reply(b"<html>not here</html>"),
        Reply(b""),
        Reply(SIGNATURE * MAX_SIGNATURE_BYTES),
    ],
)
def test_signature_that_cannot_be_fetched_is_pending(
    desired: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path, answer: Reply
) -> None:
    path = f"{desired.release.iso.signature}".removeprefix(origin.url(""))
    good = origin.replies[path]
    origin.replies[path] = [answer]
    release = preparer(tmp_path).prepare(desired, base)
    assert (release.iso.signature, release.iso.is_signature_pending) == (None, True)
    assert release.pxe["kernel"].signature is not None
    origin.replies[path] = good
    assert preparer(tmp_path).prepare(desired, base).iso.signature == SIGNATURE + b"iso"


def test_parts_that_the_iso_lacks_are_left_out(
    desired: StreamRelease, base: BaseImage, tmp_path: Path
) -> None:
    assert base.iso.files.initrd is not None
    initrd = attrs.evolve(base.iso.files.initrd, length=0)
    files = attrs.evolve(base.iso.files, rootfs=None, initrd=initrd)
    other = attrs.evolve(base, iso=attrs.evolve(base.iso, files=files))
    assert [*preparer(tmp_path).prepare(desired, other).pxe] == ["kernel"]


def test_truncated_iso_is_unavailable(desired: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    os.truncate(base.file.path, base.iso.files.rootfs.offset)  # type: ignore[union-attr] # it has one
    with pytest.raises(Unavailable, match=r"^the file changed while it was read$"):
        preparer(tmp_path).prepare(desired, base)


def test_interruption_stops_the_preparation(desired: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    made = preparer(tmp_path)
    made.interruption.interrupt()
    with pytest.raises(Interrupted):
        made.prepare(desired, base)


def test_written_files_are_claimed(desired: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    claimed: set[str] = set()

    def claim(image: str, *names: str) -> None:
        assert image == desired.entry.file_name
        claimed.update(names)

    before = {path.name for path in tmp_path.iterdir()}
    attrs.evolve(preparer(tmp_path), claim=claim).prepare(desired, base)
    assert {path.name for path in tmp_path.iterdir()} - before == claimed
    assert len(claimed) == 5
