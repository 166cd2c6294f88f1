"""Turns an import into the steps that store its disks in the image catalog. Pure."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.jobs.model import ComposePlan, JobType, Step
from image_service.jobs.plans.plan import REGISTER_IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from image_service.jobs.model import Json

AWAIT_UPLOAD = "await-upload"
"""The action that waits for manifests and parts, and pins the manifests.

Its arguments: ``expires_at``, in seconds since 1970; ``disks``, a list of objects with ``format``, ``bytes``
and ``volume_bytes``, as in `ImportedDisk`.
"""
AWAIT_STEP = "await-upload"
WAITS_FOR = "waits_for"
"""The fact that it reports until then: why the upload cannot be read; "": it is not there."""
DELETE_UPLOAD = "delete-upload"
"""The action that deletes the parts and the manifests; it has no arguments."""
MANIFEST = "manifest:"
MANIFEST_URL = "manifest-url:"
"""With the number of a disk, from 0: the sources of the inputs ``manifest`` and ``manifest-url`` of its job.

The second is the URL of the manifest, to which the names of a bundle's parts are relative.
"""

FILE_NAME = "disk.qcow2"
"""Of an imported disk; the catalog keeps all in this format."""
_FORMAT = "qcow2"


@attrs.frozen
class ImportedDisk:
    """A disk of an import, as the request describes it.

    Args:
        format: ``VMDK``, ``VHD``, ``RAW`` or ``QCOW2``.
        bytes: of the image, by the request.
        volume_bytes: the maximum of its virtual size.
        facts: members of its `CatalogImage`; the step that registers it adds the others.
    """

    format: str
    bytes: int
    volume_bytes: int
    facts: Json


def make_import_plan(
    disks: Sequence[ImportedDisk], object_stores: Iterable[str], expires_at: datetime
) -> ComposePlan:
    """Return the steps of an import.

    Args:
        disks: at least one.
        object_stores: the origins from which the worker may fetch.
        expires_at: until when the upload must be complete.
    """
    awaited = [
        {"format": disk.format, "bytes": disk.bytes, "volume_bytes": disk.volume_bytes} for disk in disks
    ]
    arguments = {"expires_at": expires_at.timestamp(), "disks": awaited}
    steps = tuple(_import_steps(disks, sorted(object_stores), after=(AWAIT_STEP,)))
    return _make_plan(
        Step(AWAIT_STEP, AWAIT_UPLOAD, arguments),
        *steps,
        Step("delete-upload", DELETE_UPLOAD, after=(steps[-1].name,)),
    )


def make_object_import_plan(disks: Sequence[ImportedDisk], origins: Iterable[str]) -> ComposePlan:
    """Return the steps of an import of objects, whose manifests are pinned; they stay where they are.

    Args:
        disks: at least one.
        origins: from which the worker may fetch.
    """
    return _make_plan(*_import_steps(disks, sorted(origins), after=()))


def _make_plan(*steps: Step) -> ComposePlan:
    first = next(step for step in steps if step.is_job)
    return ComposePlan(steps, result=f"{first.name}/{FILE_NAME}", file_name=FILE_NAME)


def _import_steps(
    disks: Sequence[ImportedDisk], object_stores: list[str], *, after: tuple[str, ...]
) -> Iterator[Step]:
    """Yield the jobs that import disks, and the step that registers their images."""
    names, images = [], []
    for number, disk in enumerate(disks):
        name = "import" if number == 0 else f"import-{number + 1}"
        names.append(name)
        images.append({**disk.facts, "format": _FORMAT, "artifact": f"{name}/{FILE_NAME}"})
        yield Step(
            name,
            JobType.IMPORT,
            {
                "object_stores": object_stores,
                "format": _FORMAT,
                "output": FILE_NAME,
                "fetched_bytes": disk.bytes,
                "volume_bytes": disk.volume_bytes,
            },
            {"manifest": f"{MANIFEST}{number}", "manifest-url": f"{MANIFEST_URL}{number}"},
            after,
        )
    yield Step("register", REGISTER_IMAGE, {"images": images}, after=tuple(names))
