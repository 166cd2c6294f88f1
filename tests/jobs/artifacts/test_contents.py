from __future__ import annotations

import hashlib
import io
import json
import tarfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.web.client import ResponseFailed

from image_service.common.objects.directory import DirectoryStore
from image_service.core.errors import NotFound, RowNotAuthentic, StoreDenied, Unavailable
from image_service.core.extents import FileExtent, Literal, Zeros
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.initrd import read_archives
from image_service.jobs.artifacts.contents import (
    BLOCK_BYTES,
    LARGE_BLOCK_BYTES,
    ExtentStream,
    _read_blocks,
)
from image_service.jobs.model import Artifact, ComposeRequest, ImageCustomization, ImageType, UploadTarget
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.messages import ApiRequest
from image_service.server.web_api.resource import ApiResource, ApiSite
from tests.common.objects.storing import put
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import CONFIG, base_image
from tests.jobs.artifacts.composing_images import disk_entry, iso_entry, run_here
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.errors import ImageServiceError
    from image_service.core.images.base_image import BaseImage
    from image_service.jobs.artifacts.contents import Content
    from image_service.jobs.model import Compose
    from image_service.server.web_api.messages import ApiResponse
    from tests.jobs.artifacts.composing_images import Artifacts

ROOTFS = bytes(range(256)) * 2000
ARGUMENTS = ("console=ttyS0", "debug")
CUSTOMIZATION = ImageCustomization(CONFIG, "http://config.example/s3cr3t", ARGUMENTS)


def request(
    image_type: ImageType, customization: ImageCustomization = CUSTOMIZATION, *targets: str
) -> ComposeRequest:
    uploads = tuple(map(UploadTarget, targets or ("local",)))
    return ComposeRequest("rhcos-4.19", "x86_64", image_type, customization, None, uploads, {})


@pytest.fixture
def iso(artifacts: Artifacts) -> Iterator[BaseImage]:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    with base_image(build_live_iso(live_files(rootfs=ROOTFS)), version="9.6.1-0") as base:
        artifacts.isos.ready["9.6.1-0"] = base
        yield base


@async_fixture
async def disk(artifacts: Artifacts, tmp_path: Path) -> AsyncIterator[bytes]:
    content = b"disk" * 1000
    (tmp_path / "disk").write_bytes(content)
    artifacts.disk_entries = [disk_entry(tmp_path / "disk", "4.19")]
    await artifacts.disks.get(artifacts.disk_entries[0])
    yield content


def read(content: Content) -> bytes:
    return b"".join(_read_blocks(content.representation.image.extents.extents, lambda: BLOCK_BYTES))


def finish(artifacts: Artifacts, compose: Compose, job_id: str, content: bytes, name: str) -> Artifact:
    """Store an artifact of a job, and end that job with it."""
    stored = put(artifacts.store, f"jobs/{job_id}/1/{name}", io.BytesIO(content))
    artifact = Artifact(name, stored.size, stored.sha256, stored.key)
    artifacts.rows.start(job_id, tenant=compose.tenant)
    artifacts.rows.finish(job_id, artifact)
    return artifact


# Composed images


@ensure_deferred
async def test_live_iso_has_config_and_arguments(artifacts: Artifacts, iso: BaseImage) -> None:
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    content = await artifacts.contents.open_image(compose)
    image = read(content)
    assert len(image) == content.size == iso.file.size
    layout = read_live_iso(lambda offset, length: image[offset : offset + length], len(image))
    area = image[layout.ignition.offset :][: layout.ignition.length]
    (member,) = read_archives(area)
    assert member.data == CONFIG
    kargs = layout.kernel_arguments
    assert kargs is not None
    arguments = kargs.read(lambda offset, length: image[offset : offset + length])
    assert arguments.endswith("console=ttyS0 debug ignition.config.url=http://config.example/s3cr3t")
    assert content.representation.image.file_name == f"{compose.id}-live-installer.iso"
    assert content.representation.image.modified == compose.created_at.replace(microsecond=0)


@ensure_deferred
async def test_same_compose_has_the_same_bytes_in_another_replica(
    artifacts: Artifacts, iso: BaseImage
) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    one, other = artifacts.contents, artifacts.contents
    first, second = await one.open_image(compose), await other.open_image(compose)
    assert read(first) == read(second)
    assert first.representation.image.etag == second.representation.image.etag


@ensure_deferred
async def test_image_in_memory_is_for_its_tenant_alone(artifacts: Artifacts, iso: BaseImage) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    contents = artifacts.contents
    await contents.open_image(compose)
    with pytest.raises(RowNotAuthentic, match="of another tenant"):
        await contents.open_image(attrs.evolve(compose, tenant="org-of-a-changed-row"))


@ensure_deferred
async def test_image_is_composed_anew_when_its_base_is_opened_again(
    artifacts: Artifacts, iso: BaseImage
) -> None:
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    composed = artifacts.composed
    first = await composed.get(compose)
    assert await composed.get(compose) is first
    with base_image(iso.file.read_at(0, iso.file.size), version=iso.version) as opened_again:
        artifacts.isos.ready[iso.version] = opened_again
        second = await composed.get(compose)
    assert (first.base, second.base) == (iso, opened_again)
    files = [
        {
            extent.file
            for extent in each.representation.image.extents.extents
            if isinstance(extent, FileExtent)
        }
        for each in (first, second)
    ]
    assert files == [{iso.file}, {opened_again.file}]


@ensure_deferred
async def test_image_without_customization_is_the_base(artifacts: Artifacts, iso: BaseImage) -> None:
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER, ImageCustomization()))
    assert read(await artifacts.contents.open_image(compose)) == iso.file.read_at(0, iso.file.size)


@ensure_deferred
async def test_pxe_archive_has_the_files(artifacts: Artifacts, iso: BaseImage) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.PXE_TAR_XZ))
    archive = read(await artifacts.contents.open_image(compose))
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:xz") as tar:
        assert tar.getnames() == ["vmlinuz", "initrd.img", "rootfs.img", "kernel-arguments"]


@pytest.mark.parametrize("argument", ["", "coreos.live.rootfs_url=http://mine.example/rootfs.img"])
@ensure_deferred
async def test_minimal_iso_has_the_rootfs_url_of_the_request(artifacts: Artifacts, argument: str) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    with base_image(live_iso_with_minimal(ROOTFS), version="9.6.1-0") as base:
        artifacts.isos.ready["9.6.1-0"] = base
        customization = ImageCustomization(kernel_arguments=(argument,) if argument else ())
        compose, _ = artifacts.add(request(ImageType.NETWORK_INSTALLER, customization))
        image = read(await artifacts.contents.open_image(compose))
    assert len(image) < base.file.size
    layout = read_live_iso(lambda offset, length: image[offset : offset + length], len(image))
    assert layout.kernel_arguments is not None
    arguments = layout.kernel_arguments.read(lambda offset, length: image[offset : offset + length])
    assert [each for each in arguments.split() if "rootfs_url" in each] == ([argument] if argument else [])
    assert "coreos.liveiso=" not in arguments


@ensure_deferred
async def test_minimal_iso_that_is_derived_is_waited_for(artifacts: Artifacts, iso: BaseImage) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.NETWORK_INSTALLER))
    with pytest.raises(Unavailable, match="derived"):
        await artifacts.contents.open_image(compose)


@ensure_deferred
async def test_config_that_does_not_fit_moves_behind_the_iso(artifacts: Artifacts, iso: BaseImage) -> None:
    noise = hashlib.shake_256(b"").hexdigest(400_000).encode()
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER, ImageCustomization(noise)))
    image = await artifacts.contents.open_image(compose)
    assert image.size > iso.file.size + len(noise)


@ensure_deferred
async def test_image_of_a_base_that_is_not_ready_is_unavailable(artifacts: Artifacts) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    with pytest.raises(Unavailable, match="not yet"):
        await artifacts.contents.open_image(compose)


@ensure_deferred
async def test_image_whose_customization_was_erased_is_not_found(
    artifacts: Artifacts, iso: BaseImage
) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    artifacts.rows.composes.delete(compose.id)
    with pytest.raises(NotFound, match="erased"):
        await artifacts.contents.open_image(compose)


# Inputs of jobs


@ensure_deferred
async def test_inputs_of_a_job_are_read(artifacts: Artifacts, disk: bytes) -> None:
    compose, _ = artifacts.add(request(ImageType.MINIMAL_RAW))
    expected = {
        "base": disk,
        "ignition": CONFIG,
        "kernel-arguments": json.dumps(
            [*ARGUMENTS, "ignition.config.url=http://config.example/s3cr3t"]
        ).encode(),
    }
    for source, data in expected.items():
        content = await artifacts.contents.open_input(compose, source)
        assert (read(content), content.size) == (data, len(data))
        assert content.sha256 == hashlib.sha256(data).hexdigest()


@ensure_deferred
async def test_base_that_is_absent_is_fetched_for_later(artifacts: Artifacts, disk: bytes) -> None:
    compose, _ = artifacts.add(request(ImageType.MINIMAL_RAW))
    artifacts.disks.close()
    with pytest.raises(Unavailable):
        await artifacts.contents.open_input(compose, "base")
    assert read(await artifacts.contents.open_input(compose, "base")) == disk


@ensure_deferred
async def test_artifact_of_an_earlier_step_is_read(artifacts: Artifacts, disk: bytes) -> None:
    del disk
    compose, job_ids = artifacts.add(request(ImageType.GUEST_IMAGE))
    finish(artifacts, compose, job_ids["customize"], b"customized", "customized.raw")
    content = await artifacts.contents.open_input(compose, "customize/customized.raw")
    assert (read(content), content.sha256) == (b"customized", hashlib.sha256(b"customized").hexdigest())


@pytest.mark.parametrize("source", ["customize/absent", "absent/disk.raw", "ignition", "", "../x", "ba"])
@ensure_deferred
async def test_input_that_is_absent_is_not_found(artifacts: Artifacts, disk: bytes, source: str) -> None:
    del disk
    compose, _ = artifacts.add(request(ImageType.GUEST_IMAGE, ImageCustomization()))
    with pytest.raises(NotFound):
        await artifacts.contents.open_input(compose, source)


@ensure_deferred
async def test_composed_image_is_an_input_with_its_digest_once_it_is_checked(
    artifacts: Artifacts, iso: BaseImage
) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    assert (await artifacts.contents.open_input(compose, "image")).sha256 is None
    await artifacts.actions.check_image(compose, compose.plan.steps[0])
    content = await artifacts.contents.open_input(compose, "image")
    assert content.sha256 == hashlib.sha256(read(content)).hexdigest()


@ensure_deferred
async def test_digest_that_is_recorded_is_known_to_other_replicas(
    artifacts: Artifacts, iso: BaseImage
) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    compose = attrs.evolve(compose, provenance={"compose": {"sha256": "ab" * 32}})
    assert (await artifacts.contents.open_image(compose)).sha256 == "ab" * 32


# Finished images


@ensure_deferred
async def test_disk_image_is_read_from_the_store(artifacts: Artifacts, disk: bytes) -> None:
    del disk
    compose, job_ids = artifacts.add(request(ImageType.GUEST_IMAGE))
    with pytest.raises(NotFound):
        await artifacts.contents.open_image(compose)
    image = finish(artifacts, compose, job_ids["convert"], b"QFI\xfb", "disk.qcow2")
    content = await artifacts.contents.open_image(attrs.evolve(compose, image=image))
    assert read(content) == b"QFI\xfb"
    assert content.representation.image.file_name == f"{compose.id}-disk.qcow2"
    assert content.representation.image.etag == f'"{image.sha256}"'


@asynccontextmanager
async def downloading(
    reactor: EPollReactor,
    artifacts: Artifacts,
    content: Content,
    before_response: Callable[[], object] = lambda: None,
) -> AsyncIterator[ApiClient]:
    async def respond(request: ApiRequest) -> ApiResponse:
        response = await artifacts.contents.respond(content, request)
        before_response()
        return response

    site = ApiSite(ApiResource(RequestGuard(), respond), reactor, 0)
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    yield ApiClient(reactor, f"http://127.0.0.1:{port.getHost().port}")
    await maybeDeferred(port.stopListening)


@ensure_deferred
async def test_downloads_are_whole_or_by_ranges(
    reactor: EPollReactor, artifacts: Artifacts, iso: BaseImage
) -> None:
    del iso
    compose, _ = artifacts.add(request(ImageType.PXE_TAR_XZ))
    await artifacts.actions.check_image(compose, compose.plan.steps[0])
    content = await artifacts.contents.open_image(compose)
    image = read(content)
    async with downloading(reactor, artifacts, content) as client:
        whole = await client("GET", "/")
        assert (whole.status, whole.body) == (200, image)
        etag = whole.field("ETag")
        assert etag == content.representation.image.etag
        assert (whole.field("Repr-Digest") or "").startswith("sha-256=:")
        assert whole.field("Cache-Control") == "private, no-cache"
        assert whole.field("Content-Disposition") == f'attachment; filename="{compose.id}-pxe.tar.xz"'
        part = await client("GET", "/", Range="bytes=70000-199999", If_Range=etag or "")
        assert (part.status, part.body) == (206, image[70000:200000])
        assert part.field("Content-Range") == f"bytes 70000-199999/{len(image)}"
        parts = await client("GET", "/", Range="bytes=0-3,70000-70009")
        assert parts.status == 206
        assert image[70000:70010] in parts.body
        head = await client("HEAD", "/", Range="bytes=0-3")
        assert (head.status, head.body, head.field("Content-Length")) == (200, b"", str(len(image)))
        unchanged = await client("GET", "/", If_None_Match=etag or "")
        assert (unchanged.status, unchanged.body) == (304, b"")
        beyond = await client("GET", "/", Range=f"bytes={len(image)}-")
        assert (beyond.status, beyond.field("Content-Range")) == (416, f"bytes */{len(image)}")
        assert (await client("GET", "/", If_Match='"other"')).status == 412


@ensure_deferred
async def test_download_of_an_object_that_is_deleted_meanwhile_is_cut_off(
    reactor: EPollReactor, artifacts: Artifacts, disk: bytes
) -> None:
    del disk
    compose, job_ids = artifacts.add(request(ImageType.GUEST_IMAGE))
    image = finish(artifacts, compose, job_ids["convert"], b"x" * (LARGE_BLOCK_BYTES + 1), "disk.qcow2")
    content = await artifacts.contents.open_image(attrs.evolve(compose, image=image))
    async with downloading(reactor, artifacts, content, lambda: artifacts.store.delete(image.key)) as client:
        with pytest.raises(ResponseFailed):
            await client("GET", "/")


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotFound("it is gone"), 404), (StoreDenied("it refuses"), 500)],
    ids=["gone", "denied"],
)
@ensure_deferred
async def test_download_whose_first_bytes_cannot_be_read_gets_an_error(  # noqa: PLR0913, PLR0917 - fixtures
    reactor: EPollReactor,
    artifacts: Artifacts,
    disk: bytes,
    monkeypatch: pytest.MonkeyPatch,
    error: ImageServiceError,
    status: int,
) -> None:
    del disk
    compose, job_ids = artifacts.add(request(ImageType.GUEST_IMAGE))
    image = finish(artifacts, compose, job_ids["convert"], b"x" * 5000, "disk.qcow2")
    content = await artifacts.contents.open_image(attrs.evolve(compose, image=image))

    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(DirectoryStore, "read_at", fail)
    async with downloading(reactor, artifacts, content) as client:
        assert (await client("GET", "/")).status == status
        assert (await client("HEAD", "/")).status == 200


# Blocks


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3 * BLOCK_BYTES // 2), max_size=5))
def test_blocks_are_full_but_the_last(lengths: list[int]) -> None:
    extents = [Literal(b"x" * length) if length % 2 else Zeros(length) for length in lengths]
    blocks = list(_read_blocks(extents, lambda: BLOCK_BYTES))
    assert all(len(block) == BLOCK_BYTES for block in blocks[:-1])
    assert b"".join(blocks) == b"".join(b"x" * each if each % 2 else bytes(each) for each in lengths)
    assert all(blocks)


@ensure_deferred
async def test_few_downloads_have_larger_blocks(artifacts: Artifacts, disk: bytes) -> None:
    del disk
    compose, job_ids = artifacts.add(request(ImageType.GUEST_IMAGE))
    image = finish(artifacts, compose, job_ids["convert"], b"x" * 3 * LARGE_BLOCK_BYTES, "disk.qcow2")
    content = await artifacts.contents.open_image(attrs.evolve(compose, image=image))
    contents, asked = artifacts.contents, ApiRequest("GET", "/")
    streams = [(await contents.respond(content, asked)).stream for _ in range(6)]
    lengths = [len(await stream.read()) for stream in streams if stream is not None]
    assert lengths == [LARGE_BLOCK_BYTES] * 4 + [BLOCK_BYTES] * 2
    for stream in streams[:3]:
        assert stream is not None
        stream.close()
    assert streams[5] is not None
    await streams[5].read()  # whose size was decided before
    assert len(await streams[5].read()) == LARGE_BLOCK_BYTES


@ensure_deferred
async def test_stream_reads_in_a_thread() -> None:
    stream = ExtentStream(iter([b"one"]), deferToThread)
    assert [await stream.read() for _ in range(3)] == [b"one", b"", b""]
    assert await ExtentStream(iter([]), run_here).read() == b""
