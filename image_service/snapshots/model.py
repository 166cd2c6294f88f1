"""Snapshots, what is cached of each key, versions of images, and requests for them. Knows no clock."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from image_service.errors import ImageServiceError, NotFound, Unavailable, UpstreamError, UpstreamTimeout
from image_service.http.respond import Representation  # noqa: TC001 - attrs resolves annotations
from image_service.images.base import BaseImage  # noqa: TC001 - same
from image_service.images.reference import Credentials, Kind, Reader, Ref, digest_of

if TYPE_CHECKING:
    from image_service.snapshots.repository import StoredSnapshot

FAILURES = (UpstreamError, UpstreamTimeout, Unavailable)
"""After these an older answer of assisted-service is used, for a while."""
RETRY_SECONDS = 5.0
"""Between two attempts to ask it again after a failure."""
MAX_OLDER = 8
"""Older generations of one key that are kept in memory."""
COMPOSED_OVERHEAD_BYTES = 4 * 1024
"""What a composed image costs beside its bytes, about."""


@attrs.frozen(cache_hash=True)
class SnapshotKey:
    """A question to assisted-service, and its credentials: kinds of image with one question share it.

    Args:
        infra_env_id: lower-case UUID.
        kind: an ISO, or the initrd for PXE.
        credentials_digest: no client gets the answer to other credentials.
    """

    infra_env_id: str
    kind: Kind
    credentials_digest: bytes | None = attrs.field(repr=False)

    @classmethod
    def of(cls, infra_env_id: str, kind: Kind, credentials: Credentials | None) -> SnapshotKey:
        """Return the key for these credentials."""
        return cls(infra_env_id, kind, digest_of(credentials))


@attrs.define(eq=False)
class Snapshot:
    """One generation of the answers to a key; the repository has the answer itself.

    Args:
        key: what it answers.
        stored_key: stands for the key, and its credentials, in the repository.
        generation: counts from 1; negative: the repository did not take it.
        taken_at: when assisted-service answered; in seconds of the process's clock, as all instants here.
        stored_at: the same, as stored: it distinguishes snapshots of one generation.
        fingerprint: of the answer without its tokens; None: it has not been compared yet.
        entry: decides how long the snapshot may be seen; None until it is cached.
    """

    key: SnapshotKey
    stored_key: bytes
    generation: int
    taken_at: float
    stored_at: float
    fingerprint: bytes | None = None
    entry: CacheEntry | None = attrs.field(default=None, init=False, repr=False)

    @property
    def is_ended(self) -> bool:
        """True if assisted-service has refused it to these credentials since."""
        return self.entry is not None and self.entry.is_ended


@attrs.define(eq=False)
class CacheEntry:
    """The newest snapshot of a key, and older ones that mounts read. Instants are the clock's seconds.

    Args:
        snapshot: the newest.
        validated_at: when assisted-service last gave an equal answer; minus infinity: never.
        key_counter: the version of `stored_key` in `Coordination` when this was read.
        revalidating_since: None: assisted-service is not being asked.
        retry_at: not to be asked again before.
        failing_since: of the first failure since the last answer.
        error: the latest failure.
        refusal: why assisted-service gives no image to new mounts.
        older: superseded snapshots, the latest first.
        is_ended: none of them may be seen any more.
    """

    snapshot: Snapshot
    validated_at: float
    key_counter: int = 0
    revalidating_since: float | None = None
    retry_at: float = 0.0
    failing_since: float | None = None
    error: ImageServiceError | None = None
    refusal: ImageServiceError | None = None
    older: list[Snapshot] = attrs.field(factory=list)
    is_ended: bool = False

    def __attrs_post_init__(self) -> None:
        self.snapshot.entry = self

    def find_generation(self, number: int) -> Snapshot | None:
        """Return a generation if it is known here."""
        return next((known for known in (self.snapshot, *self.older) if known.generation == number), None)

    def add_older(self, snapshot: Snapshot) -> None:
        """Let mounts read an older generation, for as long as they may read the newest."""
        snapshot.entry = self
        self.older = [snapshot, *self.older][:MAX_OLDER]

    def supersede(self, snapshot: Snapshot, validated_at: float) -> None:
        """Put a new generation in the place of the newest, which becomes an older one."""
        self.add_older(self.snapshot)
        snapshot.entry = self
        self.snapshot, self.validated_at = snapshot, validated_at
        self.record_answer()

    def is_superseded_by(self, stored: StoredSnapshot) -> bool:
        """Return True if what another process has stored takes the place of the newest.

        Numbers start again in a new repository. A snapshot that the repository did not take is superseded by
        any that it did, but those before it.
        """
        if self.snapshot.generation < 0:
            return not stored.is_ended and self.find_generation(stored.generation) is None
        newest = self.snapshot
        is_same = (stored.generation, stored.taken_at) == (newest.generation, newest.stored_at)
        return stored.is_ended or not is_same

    def confirm(self, at: float) -> None:
        """Record that another process got the same answer."""
        if at > self.validated_at:
            self.record_answer()
            self.validated_at = at

    def record_failure(self, error: ImageServiceError, now: float) -> None:
        """Record that assisted-service could not be asked."""
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.error, self.retry_at = error.copy(), now + RETRY_SECONDS

    def record_refusal(self, refusal: ImageServiceError, now: float) -> None:
        """Record that assisted-service gives no image to new mounts."""
        self.record_answer()
        self.refusal, self.retry_at = refusal.copy(), now + RETRY_SECONDS

    def record_answer(self) -> None:
        """Record that assisted-service has answered."""
        self.failing_since = self.error = self.refusal = None
        self.retry_at = 0.0


class SnapshotEvent(enum.Enum):
    """What the metrics count about snapshots."""

    HIT = "hit"
    MISS = "miss"
    GRACE = "grace"
    EVICTION = "eviction"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    ENDED = "ended"
    FAILED = "failed"


REVALIDATION_RESULTS = (
    SnapshotEvent.UNCHANGED,
    SnapshotEvent.CHANGED,
    SnapshotEvent.ENDED,
    SnapshotEvent.FAILED,
)


class ReadMode(enum.Enum):
    """Which version a request is for."""

    NEWEST = "newest"  # HEAD, a GET of the whole, and everything else
    RESUME = "resume"  # a range without a validator: the version that its reader is reading
    NAMED = "named"  # a range with a validator: the version that this names


@attrs.frozen
class ImageRequest:
    """What a request asks for.

    Args:
        reader: the client, and what it reads.
        mode: which version of it.
        etags: that it names.
        date: that it names, as it stands in the header field.
    """

    reader: Reader
    mode: ReadMode = ReadMode.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None


@attrs.frozen(cache_hash=True)
class Version:
    """One snapshot over one base image.

    Equal versions have equal bytes: it does not matter by which name the base image was found.

    Args:
        ref: which image; complete.
        base: the base image.
        snapshot: laid over it; None for a boot artifact.
    """

    ref: Ref = attrs.field(eq=False)
    base: BaseImage = attrs.field(eq=False)
    snapshot: Snapshot | None = attrs.field(eq=False)
    _identity: tuple[object, ...] = attrs.field(init=False, repr=False)

    @_identity.default
    def _make_identity(self) -> tuple[object, ...]:
        ref, base = self.ref, self.base
        image = (ref.infra_env_id, ref.kind) if ref.needs_customization else (ref.artifact,)
        return (*image, base.sha256, base.version, base.architecture, self.snapshot)


@attrs.frozen(eq=False)
class ComposedVersion:
    """A version with its boot image."""

    version: Version
    representation: Representation

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and what is around them."""
        return self.representation.image.extents.literal_bytes + COMPOSED_OVERHEAD_BYTES

    def is_named_by(self, request: ImageRequest) -> bool:
        """Return True if a request's validators name it."""
        representation = self.representation
        by_date = request.date is not None and representation.date == request.date
        return by_date or representation.image.etag in request.etags


class VersionLost(NotFound):
    """What a version was made of is not stored any more, or has ended: it cannot be composed again."""

    def __init__(self) -> None:
        super().__init__("the image that was being read no longer exists")
