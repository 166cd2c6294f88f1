"""The states of base images, and their rendering for ``GET /images``."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from image_service.catalog.download.fetch_guard import public_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.settings.os_images import OsImage


class BaseImageState(enum.Enum):
    """The states of a base image, as logged, in metrics and in ``GET /images``."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    DERIVING = "deriving"  # the full ISO is served already
    READY = "ready"
    DEGRADED = "degraded"  # the full ISO is served, something that belongs to it is missing; retried
    FAILED = "failed"  # retried
    REFUSED = "refused"  # invalid, until the next start
    STOPPED = "stopped"


@attrs.frozen
class ImageStatus:
    """The status of one base image.

    Args:
        entry: its configuration.
        state: the present one.
        reason: why it failed or was refused, or what it lacks; else empty.
        bytes_done: downloaded so far.
        bytes_total: to be downloaded; None: the origin does not say.
        size: bytes of the image that is served; None: none is.
        sha256: its digest, lower-case hex; None: none is served.
        retry_at: seconds since the epoch; None: no retry is scheduled.
    """

    entry: OsImage
    state: BaseImageState
    reason: str = ""
    bytes_done: int = 0
    bytes_total: int | None = None
    size: int | None = None
    sha256: str | None = None
    retry_at: float | None = None

    @property
    def image(self) -> str:
        """Its name in ``DATA_DIR``."""
        return self.entry.file_name


def render_statuses(statuses: Iterable[ImageStatus]) -> bytes:
    """Render the response to ``GET /images``: JSON with an object per image and OpenShift version."""
    images = [
        _describe(status, version) for status in statuses for version in status.entry.openshift_versions
    ]
    return json.dumps({"images": images}, indent=2).encode() + b"\n"


def _describe(status: ImageStatus, openshift_version: str) -> dict[str, object]:
    entry, retry_at = status.entry, None
    if status.retry_at is not None:
        retry_at = datetime.fromtimestamp(status.retry_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "version": entry.version,
        "openshift_version": openshift_version,
        "cpu_architecture": entry.cpu_architecture,
        "type": entry.image_type,
        "state": status.state.value,
        "reason": status.reason or None,
        "bytes_done": status.bytes_done,
        "bytes_total": status.bytes_total,
        "size": status.size,
        "sha256": status.sha256,
        "retry_at": retry_at,
        "url": public_url(entry.url),
    }
