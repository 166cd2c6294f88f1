"""The most that the artifacts of a plan can take. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from image_service.jobs.model import ComposePlan

_ADDED_BYTES = 64 * 1024**2  # headers, and what a customization adds
_TABLES = 64  # a format's tables have at most one byte for so many of the disk


def most_bytes(plan: ComposePlan, disk_bytes: int) -> int:
    """Return the most that the outputs of all jobs take together in the object store.

    Args:
        disk_bytes: virtual size of the disk that the plan reads; imports have their own.
    """
    return sum(
        _most_of_file(_virtual_bytes(step.arguments, disk_bytes))
        for step in plan.steps
        if step.is_job and "output" in step.arguments
    )


def _virtual_bytes(arguments: Any, disk_bytes: int) -> int:  # noqa: ANN401 - JSON
    return max(arguments.get("volume_bytes") or disk_bytes, arguments.get("size") or 0)


def _most_of_file(virtual_bytes: int) -> int:
    return virtual_bytes + virtual_bytes // _TABLES + _ADDED_BYTES
