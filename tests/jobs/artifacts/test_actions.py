from __future__ import annotations

import hashlib
import io
import lzma
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import FormatError, NotFound, Unavailable, UnknownBaseImage
from image_service.jobs.artifacts.actions import MAX_PREPARATION, StepResult
from image_service.jobs.model import (
    Artifact,
    ComposeRequest,
    ImageCustomization,
    ImageType,
    Step,
    TenantBudget,
    UploadTarget,
)
from image_service.jobs.plans.plan import CHECK_IMAGE, FETCH_BASE, FIND_IMAGE, REGISTER_IMAGE
from tests.common.objects.storing import put
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.core.images.building import CONFIG, base_image, bytes_of
from tests.jobs.artifacts.composing_images import disk_entry, iso_entry
from tests.jobs.database.composing import make_compose, make_image
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.jobs.model import Compose
    from tests.jobs.artifacts.composing_images import Artifacts

DISK = b"disk" * 1000


def request(image_type: ImageType, *arguments: str) -> ComposeRequest:
    customization = ImageCustomization(CONFIG, kernel_arguments=arguments)
    return ComposeRequest(
        "rhcos-4.19", "x86_64", image_type, customization, None, (UploadTarget("local"),), {}
    )


def offer_disk(artifacts: Artifacts, directory: Path, disk: bytes = DISK) -> None:
    (directory / "disk.xz").write_bytes(lzma.compress(disk))
    artifacts.disk_entries = [disk_entry(directory / "disk.xz", "4.19")]


def finish_convert(artifacts: Artifacts, content: bytes, image_type: ImageType) -> tuple[Compose, Artifact]:
    compose, job_ids = artifacts.add(request(image_type))
    step, name = (compose.plan.result or "").split("/")
    stored = put(artifacts.store, f"jobs/{job_ids[step]}/1/x/{name}", io.BytesIO(content))
    artifact = Artifact(name, stored.size, stored.sha256, stored.key)
    artifacts.rows.start(job_ids[step], tenant=compose.tenant)
    artifacts.rows.finish(job_ids[step], artifact)
    return compose, artifact


def test_all_actions_of_plans_are_there(artifacts: Artifacts) -> None:
    assert set(artifacts.actions.by_name) == {FETCH_BASE, CHECK_IMAGE, FIND_IMAGE, REGISTER_IMAGE}


@ensure_deferred
async def test_base_is_fetched_and_described(artifacts: Artifacts, tmp_path: Path) -> None:
    offer_disk(artifacts, tmp_path)
    compose, _ = artifacts.add(request(ImageType.GUEST_IMAGE))
    result = await artifacts.actions.fetch_base(compose, compose.plan.steps[0])
    assert result.error is None
    assert result.provenance == {
        "base": "rhcos-metal-disk-9.6.1-0-x86_64.img",
        "base_version": "9.6.1-0",
        "base_sha256": hashlib.sha256(lzma.compress(DISK)).hexdigest(),
    }
    content = await artifacts.contents.open_input(compose, "base")
    assert content.sha256 == hashlib.sha256(DISK).hexdigest()


@ensure_deferred
async def test_compose_reserves_what_its_base_needs_once_it_is_fetched(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    offer_disk(artifacts, tmp_path, bytes(512 * 1024))
    compose, _ = artifacts.add(request(ImageType.VSPHERE))
    result = await artifacts.actions.fetch_base(compose, compose.plan.steps[0])
    assert result.error is None
    found = artifacts.rows.composes.find(compose.id)
    assert found is not None
    assert found.store_bytes == 2 * (512 * 1024 * 65 // 64 + 64 * 1024**2)


@ensure_deferred
async def test_base_that_needs_more_than_the_budget_ends_the_step(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    offer_disk(artifacts, tmp_path, bytes(512 * 1024))
    compose, _ = artifacts.add(request(ImageType.VSPHERE))
    artifacts.rows.budget = TenantBudget(max_composes=9, max_bytes=100 * 1024**2)
    result = await artifacts.actions.fetch_base(compose, compose.plan.steps[0])
    assert result.error is not None
    assert result.error.reason.startswith("step fetch: JOBS_MAX_BYTES: ")


@ensure_deferred
async def test_base_that_is_no_longer_offered_ends_the_step(artifacts: Artifacts, tmp_path: Path) -> None:
    offer_disk(artifacts, tmp_path)
    compose, _ = artifacts.add(request(ImageType.GUEST_IMAGE))
    artifacts.disk_entries = []
    with pytest.raises(UnknownBaseImage):
        await artifacts.actions.fetch_base(compose, compose.plan.steps[0])


@ensure_deferred
async def test_base_that_stays_unavailable_ends_the_step_after_hours(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    artifacts.disk_entries = [disk_entry(tmp_path / "absent", "4.19")]
    compose, _ = artifacts.add(request(ImageType.GUEST_IMAGE))
    action, step = artifacts.actions.by_name[FETCH_BASE], compose.plan.steps[0]
    with pytest.raises(Unavailable) as caught:
        await action(compose, step)
    assert caught.value.retry_after_seconds is None  # an origin could name a time after the limit
    artifacts.rows.clock.advance(MAX_PREPARATION.total_seconds())
    result = await action(compose, step)
    assert result.error is not None
    assert result.error.id == 10
    assert result.error.reason.startswith("step fetch: rhcos-metal-disk-")


@ensure_deferred
async def test_image_is_checked_and_hashed(artifacts: Artifacts) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER))
    with pytest.raises(Unavailable):
        await artifacts.actions.check_image(compose, compose.plan.steps[0])
    with base_image(build_live_iso(), version="9.6.1-0") as base:
        artifacts.isos.ready["9.6.1-0"] = base
        result = await artifacts.actions.check_image(compose, compose.plan.steps[0])
        image = (await artifacts.contents.open_image(compose)).representation.image
        assert result.error is None
        assert result.provenance == {
            "base": "the base image 9.6.1-0 (x86_64)",
            "base_version": "9.6.1-0",
            "base_sha256": base.sha256,
            "sha256": hashlib.sha256(bytes_of(image)).hexdigest(),
        }


@ensure_deferred
async def test_customization_that_does_not_fit_is_the_users_fault(artifacts: Artifacts) -> None:
    artifacts.isos.entries = [iso_entry("9.6.1-0", "4.19")]
    compose, _ = artifacts.add(request(ImageType.LIVE_INSTALLER, "a;b"))
    with base_image(build_live_iso(), version="9.6.1-0") as base:
        artifacts.isos.ready["9.6.1-0"] = base
        result = await artifacts.actions.check_image(compose, compose.plan.steps[0])
    assert result.error is not None
    assert (result.error.id, result.error.details) == (4, "kernel-argument-invalid")
    assert result.error.reason.startswith("step compose: ")


@ensure_deferred
async def test_image_is_registered_once(artifacts: Artifacts, tmp_path: Path) -> None:
    offer_disk(artifacts, tmp_path)
    compose, artifact = finish_convert(artifacts, bytes(8192), ImageType.AWS)
    for _ in range(2):
        result = await artifacts.actions.register_image(compose, compose.plan.steps[-1])
        assert result == StepResult()
    (image,), _ = artifacts.images.find_page(compose.tenant, 0, 9)
    assert (image.format, image.virtual_size, image.artifact) == ("raw", 8192, artifact)
    assert (image.source, image.name) == (f"compose:{compose.id}", "rhcos-4.19 aws")
    assert artifacts.images.find(compose.tenant, image.instance_alias) == image


@ensure_deferred
async def test_image_of_another_format_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    offer_disk(artifacts, tmp_path)
    compose, _ = finish_convert(artifacts, b"no qcow2" * 100, ImageType.GUEST_IMAGE)
    with pytest.raises(FormatError):
        await artifacts.actions.register_image(compose, compose.plan.steps[-1])
    assert artifacts.images.find_page(compose.tenant, 0, 9) == ([], 0)


@ensure_deferred
async def test_image_without_artifact_is_not_registered(artifacts: Artifacts, tmp_path: Path) -> None:
    offer_disk(artifacts, tmp_path)
    compose, _ = artifacts.add(request(ImageType.GUEST_IMAGE))
    with pytest.raises(NotFound):
        await artifacts.actions.register_image(attrs.evolve(compose), compose.plan.steps[-1])


@ensure_deferred
async def test_image_of_the_catalog_is_described_by_its_alias_and_digest(artifacts: Artifacts) -> None:
    image = make_image(1)
    artifacts.images.add(image)
    compose, step = make_compose(tenant=image.tenant), Step("find", FIND_IMAGE, {"image": image.id})
    result = await artifacts.actions.find_image(compose, step)
    assert result.provenance == {
        "base": image.name,
        "base_version": image.instance_alias,
        "base_sha256": image.artifact.sha256,
    }
    with pytest.raises(NotFound):
        await artifacts.actions.find_image(attrs.evolve(compose, tenant="org-2"), step)
