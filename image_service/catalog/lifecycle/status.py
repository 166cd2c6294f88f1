"""How far base images have come, as it is told: in the log, in metrics and by ``GET /images``."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.settings.os_images import OsImage


class BaseImageState(enum.Enum):
    """How far a base image has come."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    DERIVING = "deriving"  # a full ISO is served by now
    READY = "ready"
    FAILED = "failed"  # is tried again
    REFUSED = "refused"  # is not what it should be, and stays so until the next start
    STOPPED = "stopped"


@attrs.frozen
class ImageStatus:
    """What is told about one base image.

    Args:
        entry: what it is to be.
        state: how far it has come.
        reason: why it failed or was refused; else empty.
        bytes_done: of it that are there.
        bytes_total: that there are to be; None: the origin does not say.
        size: bytes of the image that is served; None: none is.
        sha256: its digest, lower-case hex; None: none is.
        retry_at: when it is tried again, seconds since the epoch; None: nothing is planned.
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
        """Its name, as in ``DATA_DIR``."""
        return self.entry.file_name


def render_statuses(statuses: Iterable[ImageStatus]) -> bytes:
    """Make what ``GET /images`` answers.

    Args:
        statuses: of all images.

    Returns:
        JSON: an object for each OpenShift version that an image is for, as in ``OS_IMAGES``.
    """
    images = [told for status in statuses for told in _tell(status)]
    return json.dumps({"images": images}, indent=2).encode() + b"\n"


def _tell(status: ImageStatus) -> Iterator[dict[str, object]]:
    entry = status.entry
    for openshift_version in entry.openshift_versions:
        yield {
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
            "retry_at": _timestamp(status.retry_at),
            "url": _without_secrets(entry.url),
        }


def _timestamp(seconds: float | None) -> str | None:
    """RFC 3339, in whole seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_secrets(url: str) -> str:
    """Leave out query and user, which may be credentials."""
    split = urlsplit(url)
    return split._replace(netloc=split.netloc.rpartition("@")[2], query="", fragment="").geturl()
