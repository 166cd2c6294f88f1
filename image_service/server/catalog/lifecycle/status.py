"""The states of base images, and their rendering for ``GET /images``."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import attrs

from image_service.common.http.origins import public_url
from image_service.common.openapi.bodies import Count, Keywords, Time, body, render_body, schemas_of
from image_service.server.http.dates import format_rfc3339
from image_service.server.http.redaction import redact_detail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from image_service.settings.os_images import OsImage


_MAX_CAUSES = 3
_MAX_REASON = 160  # characters


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


READY = frozenset({BaseImageState.READY, BaseImageState.DEGRADED})
"""States in which an image is served."""


@attrs.frozen
class ImageStatus:
    """The status of one base image.

    Args:
        reason: why it failed or was refused, or what it lacks; else empty.
        bytes_done: downloaded so far; of a remote image, present on local disk.
        bytes_total: to be downloaded; None: the origin does not say.
        size: bytes of the image that is served; None: none is.
        sha256: its digest, lower-case hex; None: none is served.
        family: the name of the family of live ISOs; None: it is not known yet, or this is not a live ISO.
        verified: what says that the bytes are right: ``digest``, ``origin`` (its validator) or None.
        retry_seconds: until the next attempt; None: no retry is scheduled.
        since: when the state was entered, in UTC; None: it is not that of a running service.
        layer: digest of the layer of a registry that is read by ranges; None: none is.
    """

    entry: OsImage
    state: BaseImageState
    reason: str = ""
    bytes_done: int = 0
    bytes_total: int | None = None
    size: int | None = None
    sha256: str | None = None
    verified: str | None = None
    family: str | None = None
    retry_seconds: float | None = None
    layer: str | None = None
    since: datetime | None = None

    @property
    def image(self) -> str:
        """Its name in ``DATA_DIR``."""
        return self.entry.file_name


@body()
class BaseImageBody:
    """The status of a base image for one OpenShift version, in ``GET /images``."""

    version: str
    openshift_version: str
    cpu_architecture: str
    type: str
    family: str | None
    state: BaseImageState
    state_since: Time | None
    reason: str | None
    bytes_done: Count
    bytes_total: Count | None
    size: Count | None
    sha256: Annotated[str | None, Keywords(pattern="^[0-9a-f]{64}$")]
    remote: bool
    verified: Annotated[str | None, Keywords(enum=["digest", "origin", None])]
    retry_at: Time | None
    url: str


@body()
class SupersededBaseBody:
    """A base image that is kept for the mounts which read it, though another one has its place.

    Args:
        mounts: that are stored, when they were last counted.
        is_kept_at_restart: False: newer ones have taken its place among those that the next start finds.
    """

    version: str
    cpu_architecture: str
    type: str
    sha256: Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]
    size: Count
    mounts: Count
    is_kept_at_restart: bool


@body()
class BaseImagesBody:
    """The content of ``GET /images``."""

    images: tuple[BaseImageBody, ...]
    superseded: tuple[SupersededBaseBody, ...]


BASE_IMAGE_SCHEMAS = schemas_of(BaseImagesBody)


def render_statuses(statuses: Iterable[ImageStatus], superseded: Iterable[SupersededBaseBody] = ()) -> bytes:
    """Render the response to ``GET /images``: JSON with an object per image and OpenShift version."""
    images = tuple(
        _describe(status, version) for status in statuses for version in status.entry.openshift_versions
    )
    document = BaseImagesBody(images=images, superseded=tuple(superseded))
    return json.dumps(document, indent=2, default=render_body).encode() + b"\n"


def count_ready(statuses: Sequence[ImageStatus]) -> str:
    """Return how many images are ready or degraded: ``1 of 2 base images is ready``."""
    return describe_ready(sum(status.state in READY for status in statuses), len(statuses))


def describe_ready(ready: int, total: int) -> str:
    """Return the same for numbers of base images."""
    images = "base image" if total == 1 else "base images"
    return f"{ready} of {total} {images} {'is' if 1 in (ready, total) else 'are'} ready"


def describe_unready(statuses: Sequence[ImageStatus], *, is_public: bool = False) -> str:
    """Return which images are not served yet and why, in one sentence for probes, of limited length.

    Args:
        statuses: of all images.
        is_public: whether anybody reads it; then it names no image, path or host.
    """
    if not statuses:
        return "no base images yet: no release of COREOS_STREAMS is known; see the log"
    if is_public:
        return count_ready(statuses)
    unready = [status for status in statuses if status.state not in READY]
    causes = [_describe_cause(status) for status in unready[:_MAX_CAUSES]]
    if len(unready) > _MAX_CAUSES:
        causes.append(f"{len(unready) - _MAX_CAUSES} more")
    return "; ".join((count_ready(statuses), *causes, "see /images"))


def _describe_cause(status: ImageStatus) -> str:
    cause = f"{status.image} is {status.state.value}"
    return f"{cause}: {redact_detail(status.reason, _MAX_REASON)}" if status.reason else cause


def _describe(status: ImageStatus, openshift_version: str) -> BaseImageBody:
    entry, retry_at = status.entry, None
    if status.retry_seconds is not None:
        # The reactor's clock is monotonic, so its time is not a date.
        moment = datetime.now(UTC) + timedelta(seconds=status.retry_seconds)
        retry_at = format_rfc3339(moment)
    return BaseImageBody(
        version=entry.version,
        openshift_version=openshift_version,
        cpu_architecture=entry.cpu_architecture,
        type=entry.image_type,
        family=status.family,
        state=status.state,
        state_since=None if status.since is None else format_rfc3339(status.since),
        reason=status.reason or None,
        bytes_done=status.bytes_done,
        bytes_total=status.bytes_total,
        size=status.size,
        sha256=status.sha256,
        remote=entry.remote,
        verified=status.verified,
        retry_at=retry_at,
        url=public_url(entry.url),
    )
