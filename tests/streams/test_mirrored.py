from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.catalog.download.http_get import HttpGet
from image_service.catalog.lifecycle.opening import open_base_image
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.coreos.stream_metadata import StreamArtifact, select_releases
from image_service.errors import Unavailable
from image_service.files.base_file import BaseFile
from image_service.settings.base_images import DownloadSettings
from image_service.streams.mirrored import MAX_SIGNATURE_BYTES, MirroredFile, MirroredRelease, Preparation
from image_service.streams.streams import StreamRelease
from tests.catalog.origin import Answer, Origin
from tests.coreos.streams import stream
from tests.formats.iso_builder import build_live_iso, live_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.images.base import BaseImage

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


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def wanted(origin: Origin) -> StreamRelease:
    """A release as its stream tells it: with the right digests, and signatures of everything."""
    (release,) = select_releases(stream(origin=origin.url("")), ["x86_64"])
    artifacts: dict[str, Any] = {}
    for name, content in {"iso": ISO, **PARTS}.items():
        artifact: StreamArtifact = getattr(release, name)
        artifacts[name] = attrs.evolve(artifact, sha256=sha256(content))
        assert artifact.signature is not None
        origin.serve(artifact.signature.removeprefix(origin.url("")), Answer(SIGNATURE + name.encode()))
    release = attrs.evolve(release, **artifacts)
    return StreamRelease("stable", release)


@pytest.fixture
def base(wanted: StreamRelease, tmp_path: Path) -> Iterator[BaseImage]:
    path = tmp_path / wanted.entry.file_name
    path.write_bytes(ISO)
    opened = open_base_image(wanted.entry, path, tmp_path / "rhcos-sidecar.json", Interruption())
    yield opened
    os.close(opened.file.descriptor)


def preparation(directory: Path) -> Preparation:
    return Preparation(directory, HttpGet.from_settings(DownloadSettings()), Interruption())


def content(release: MirroredRelease, file: MirroredFile) -> bytes:
    return os.pread(release.base.file.descriptor, file.length, file.offset)


def test_every_file_is_there_with_its_digest_and_its_signature(
    wanted: StreamRelease, base: BaseImage, tmp_path: Path
) -> None:
    release = preparation(tmp_path).prepare(wanted, base)
    assert content(release, release.iso) == ISO
    assert {name: content(release, file) for name, file in release.pxe.items()} == PARTS
    for name, file in {"iso": release.iso, **release.pxe}.items():
        assert file.name == getattr(wanted.release, name).name
        assert file.sha256 == sha256(content(release, file))
        assert (file.signature, file.awaited) == (SIGNATURE + name.encode(), False)
    assert release.held.pxe["rootfs"].sha256 == sha256(PARTS["rootfs"])
    assert release.held.version == wanted.release.version


def test_a_signature_of_other_bytes_is_not_asked_for(
    wanted: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path
) -> None:
    assert wanted.release.kernel is not None
    kernel = attrs.evolve(wanted.release.kernel, sha256="0" * 64)
    other = attrs.evolve(wanted, release=attrs.evolve(wanted.release, kernel=kernel))
    release = preparation(tmp_path).prepare(other, base)
    assert release.pxe["kernel"].sha256 == sha256(PARTS["kernel"])
    assert (release.pxe["kernel"].signature, release.pxe["kernel"].awaited) == (None, False)
    assert len(origin.asked) == 3


def test_a_stream_without_signatures_is_not_asked_for_any(
    wanted: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path
) -> None:
    iso = attrs.evolve(wanted.release.iso, signature=None)
    bare = attrs.evolve(wanted.release, iso=iso, kernel=None, initramfs=None, rootfs=None)
    release = preparation(tmp_path).prepare(attrs.evolve(wanted, release=bare), base)
    assert origin.asked == []
    assert [file.name for file in release.files] == [
        wanted.release.iso.name,
        "coreos-44.1.2.3-live-kernel.x86_64",
        "coreos-44.1.2.3-live-initramfs.x86_64.img",
        "coreos-44.1.2.3-live-rootfs.x86_64.img",
    ]


def test_what_was_found_out_is_remembered(
    wanted: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = preparation(tmp_path).prepare(wanted, base)
    monkeypatch.setattr(BaseFile, "sha256", None)
    assert preparation(tmp_path).prepare(wanted, base) == first
    assert len(origin.asked) == 4


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=404),
        Answer(b"<html>not here</html>"),
        Answer(b""),
        Answer(SIGNATURE * MAX_SIGNATURE_BYTES),
    ],
)
def test_a_signature_that_cannot_be_had_is_awaited(
    wanted: StreamRelease, base: BaseImage, origin: Origin, tmp_path: Path, answer: Answer
) -> None:
    path = f"{wanted.release.iso.signature}".removeprefix(origin.url(""))
    good = origin.answers[path]
    origin.answers[path] = [answer]
    release = preparation(tmp_path).prepare(wanted, base)
    assert (release.iso.signature, release.iso.awaited) == (None, True)
    assert release.pxe["kernel"].signature is not None
    origin.answers[path] = good
    assert preparation(tmp_path).prepare(wanted, base).iso.signature == SIGNATURE + b"iso"


def test_what_an_iso_does_not_have_is_not_mirrored(
    wanted: StreamRelease, base: BaseImage, tmp_path: Path
) -> None:
    assert base.layout.files.initrd is not None
    initrd = attrs.evolve(base.layout.files.initrd, length=0)
    files = attrs.evolve(base.layout.files, rootfs=None, initrd=initrd)
    other = attrs.evolve(base, layout=attrs.evolve(base.layout, files=files))
    assert [*preparation(tmp_path).prepare(wanted, other).pxe] == ["kernel"]


def test_an_iso_that_became_short_is_told(wanted: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    os.truncate(base.file.path, base.layout.files.rootfs.offset)  # type: ignore[union-attr] # it has one
    with pytest.raises(Unavailable, match=r"^changed while it was read$"):
        preparation(tmp_path).prepare(wanted, base)


def test_it_ends_when_it_is_interrupted(wanted: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    made = preparation(tmp_path)
    made.interruption.interrupt()
    with pytest.raises(Interrupted):
        made.prepare(wanted, base)


def test_what_it_writes_is_said_to_be_ours(wanted: StreamRelease, base: BaseImage, tmp_path: Path) -> None:
    claimed: set[str] = set()

    def claim(image: str, *names: str) -> None:
        assert image == wanted.entry.file_name
        claimed.update(names)

    before = {path.name for path in tmp_path.iterdir()}
    attrs.evolve(preparation(tmp_path), claim=claim).prepare(wanted, base)
    assert {path.name for path in tmp_path.iterdir()} - before == claimed
    assert len(claimed) == 5
