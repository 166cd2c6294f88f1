"""The documents that the composer API replies. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.core.provenance.dsse import sign_bundle
from image_service.jobs.artifacts.provenance import make_provenance, make_sbom
from image_service.jobs.composer.errors import BASE_PATH
from image_service.jobs.model import ComposeState, JobError, JobErrorId, JobState
from image_service.jobs.plans.plan import CONTAINER, FILE_NAMES, OCI, S3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from image_service.core.provenance.dsse import BundleSigner
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.model import (
        Compose,
        ComposeBase,
        ComposeSummary,
        ImageType,
        Job,
        JobSummary,
        Json,
        UploadResult,
    )

CONTENT_TYPE = "application/octet-stream"

_ENDED_JOBS = {JobState.FINISHED, JobState.FAILED, JobState.CANCELLED}


def describe_object(kind: str, compose_id: str, path: str, **members: object) -> Json:
    """Return a flat object with ``id``, ``kind`` and ``href``, which is `path` below the API's own."""
    return {"id": compose_id, "kind": kind, "href": BASE_PATH + path, **members}


def describe_page(kind: str, items: Sequence[Json], page: int, total: int) -> Json:
    """Return one page of a list."""
    return {"kind": kind, "page": page, "size": len(items), "total": total, "items": items}


def describe_status(
    compose: ComposeSummary, jobs: Sequence[JobSummary], sign: Callable[[UploadResult], str]
) -> Json:
    """Return a ``ComposeStatus``.

    Args:
        jobs: of the compose, for its progress; empty: leave that out.
        sign: returns the URL of a finished upload to S3.
    """
    image_status = _describe_image(compose, jobs, sign)
    times = {"created_at": compose.created_at, "finished_at": compose.finished_at}
    return describe_object(
        "ComposeStatus",
        compose.id,
        f"/composes/{compose.id}",
        status=_overall_status(compose.state),
        image_status=image_status,
        image_statuses=[image_status],
        distribution=compose.distribution,
        architecture=compose.architecture,
        image_type=compose.image_type,
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    )


def _overall_status(state: ComposeState) -> str:
    if not state.is_final:
        return "pending"
    return "success" if state is ComposeState.SUCCESS else "failure"


def _describe_image(
    compose: ComposeSummary, jobs: Sequence[JobSummary], sign: Callable[[UploadResult], str]
) -> dict[str, object]:
    uploads = [_describe_upload(compose, upload, sign) for upload in compose.uploads]
    state = compose.state
    status: dict[str, object] = {
        "status": _overall_status(state) if state.is_final else state.value,
        "upload_status": uploads[0],
        "upload_statuses": uploads,
    }
    if compose.error is not None:
        status["error"] = attrs.asdict(compose.error)
    elif state is ComposeState.CANCELLED:
        status["error"] = attrs.asdict(JobError(JobErrorId.BUILD_FAILED, "the compose was cancelled"))
    if jobs and not state.is_final:
        status["progress"] = _describe_progress(jobs)
    return status


def _describe_upload(
    compose: ComposeSummary, upload: UploadResult, sign: Callable[[UploadResult], str]
) -> Json:
    if upload.target.type == S3:
        options = {"url": sign(upload) if upload.location else ""}
    elif upload.target.type == OCI:
        options = {"url": upload.location}
    elif upload.target.type == CONTAINER:
        options = {"url": upload.location.removeprefix("oci://"), "digest": upload.digest}
    else:
        options = {"artifact_path": f"{BASE_PATH}/composes/{compose.id}/download"}
    return {"status": upload.status, "type": upload.target.type, "options": options}


def _describe_progress(jobs: Sequence[JobSummary]) -> Json:
    running = next((job.progress for job in jobs if job.state is JobState.RUNNING and job.progress), None)
    return {
        "done": sum(job.state in _ENDED_JOBS for job in jobs),
        "total": len(jobs),
        **({"subprogress": {"done": running.done, "total": running.total}} if running else {}),
    }


def describe_metadata(compose: Compose) -> Json:
    """Return a ``ComposeMetadata``; composes have no packages of their own."""
    packages: dict[str, object] = {"packages": []} if compose.state is ComposeState.SUCCESS else {}
    return _describe_part("ComposeMetadata", compose, "metadata", request=compose.request, **packages)


def describe_logs(compose: Compose, jobs: Iterable[Job]) -> Json:
    """Return ``ComposeLogs``: the log of the latest attempt of each job."""
    steps = [
        {
            "step": job.step,
            "job": job.id,
            "state": job.state.value,
            "attempt": job.attempt,
            "log": str(job.result.get("log", "")),
            **({"error": attrs.asdict(job.error)} if job.error is not None else {}),
        }
        for job in jobs
    ]
    return _describe_part("ComposeLogs", compose, "logs", image_builds=[{"steps": steps}])


def describe_manifests(compose: Compose) -> Json:
    """Return ``ComposeManifests``: the plan, and the digest of the Ignition config."""
    steps = [
        {
            "name": step.name,
            "action": step.action,
            "arguments": dict(step.arguments),
            "inputs": dict(step.inputs),
            "after": step.after,
        }
        for step in compose.plan.steps
    ]
    manifest = {
        "distribution": compose.distribution,
        "architecture": compose.architecture,
        "image_type": compose.image_type,
        "file_name": compose.plan.file_name,
        "ignition_sha256": compose.ignition_sha256,
        "steps": steps,
    }
    return _describe_part("ComposeManifests", compose, "manifests", manifests=[manifest])


def describe_sboms(compose: Compose) -> Json:
    """Return ``ComposeSBOMs``: the additions to the base image."""
    sbom = {
        "sbom": make_sbom(compose),
        "sbom_type": "spdx",
        "pipeline_name": "customization",
        "pipeline_purpose": "image",
    }
    return _describe_part("ComposeSBOMs", compose, "sboms", items=[[sbom]])


def describe_provenance(compose: Compose, jobs: Sequence[Job], signer: BundleSigner | None) -> Json:
    """Return ``ComposeProvenance``: the inputs of the image, signed if there is a key."""
    statement = make_provenance(compose, jobs)
    bundles: list[Json] = []
    if signer is not None:
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
        bundles.append(json.loads(sign_bundle(signer, payload)))
    return _describe_part("ComposeProvenance", compose, "provenance", items=[statement], bundles=bundles)


def _describe_part(kind: str, compose: Compose, part: str, **members: object) -> Json:
    return describe_object(kind, compose.id, f"/composes/{compose.id}/{part}", **members)


def describe_image(image: CatalogImage) -> Json:
    """Return a ``CatalogImage``."""
    return describe_object(
        "CatalogImage",
        image.id,
        f"/images/{image.id}",
        instance_id=image.instance_alias,
        volume_id=image.volume_alias,
        name=image.name,
        architecture=image.architecture,
        format=image.format,
        source=image.source,
        description=image.description,
        platform=image.platform,
        layout=image.layout.value,
        launch_specification=dict(image.launch_specification),
        created_at=image.created_at.isoformat(),
        size=image.artifact.size,
        virtual_size=image.virtual_size,
        sha256=image.artifact.sha256,
    )


def describe_base_image(base: ComposeBase) -> Json:
    """Return the ``CatalogImage`` of a base disk, whose size is not known before it is fetched."""
    return describe_object(
        "CatalogImage",
        base.image_id,
        f"/images/{base.image_id}",
        instance_id=base.instance_alias,
        name=f"{base.version} {base.platform}",
        architecture=base.architecture,
        format=base.format,
        source="base",
    )


def describe_distributions(distributions: Mapping[str, Mapping[str, tuple[ImageType, ...]]]) -> Json:
    """Return a ``DistributionList``."""
    return {
        name: {
            architecture: {image_type.value: [] for image_type in image_types}
            for architecture, image_types in architectures.items()
        }
        for name, architectures in distributions.items()
    }


def describe_distribution(name: str, architectures: Mapping[str, Iterable[ImageType]]) -> Json:
    """Return ``DistributionDetails``."""
    details = {
        architecture: {
            "name": architecture,
            "image_types": {
                image_type.value: {
                    "name": image_type.value,
                    "filename": FILE_NAMES[image_type],
                    "mime_type": CONTENT_TYPE,
                }
                for image_type in image_types
            },
        }
        for architecture, image_types in architectures.items()
    }
    return describe_object(
        "DistributionDetails", name, f"/distributions/{name}", name=name, architectures=details
    )
