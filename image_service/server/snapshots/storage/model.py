"""Snapshots, what is cached of each key, versions of images, and requests for them. Knows no clock."""

from __future__ import annotations

import enum
from math import inf
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ImageServiceError, NotFound, Unavailable, UpstreamError, UpstreamTimeout
from image_service.core.images.base import BaseImage  # noqa: TC001 - same
from image_service.core.images.layouts import LAYOUTS, newest_layout, oldest_layout
from image_service.core.images.reference import Credentials, Kind, Reader, Ref, digest_of
from image_service.server.http.respond import Representation  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from collections.abc import Collection

    from image_service.core.images.layouts import ByteLayout
    from image_service.server.snapshots.storage.repository import StoredSnapshot

FAILURES = (UpstreamError, UpstreamTimeout, Unavailable)
"""After these an older answer of assisted-service is used, for a while. UpstreamQueueFull is an Unavailable
too, but neither an answer nor a failure of assisted-service: it was not asked."""
RETRY_SECONDS = 5.0
"""Between two attempts to ask it again after a failure or a refusal."""
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


@attrs.define
class SharedLayouts:
    """Which layouts the replicas have that share the repository; at first as if there were this one alone.

    Args:
        common: the newest that all of them have; new snapshots get it.
        latest: the newest that any of them has.
    """

    common: int = attrs.field(factory=lambda: newest_layout().version)
    latest: int = attrs.field(factory=lambda: newest_layout().version)

    def record(self, newest: Collection[int]) -> None:
        """Record the newest layout of each replica that was seen."""
        self.common = max(min(newest), oldest_layout().version)
        self.latest = max(newest)

    def all_have(self, version: int) -> bool:
        """Return True if any replica can compose what has this layout."""
        return version in LAYOUTS and version <= self.common

    def get(self, version: int) -> ByteLayout:
        """Return a layout; raises `LayoutMissing` if another replica has it, else `VersionLost`."""
        if version in LAYOUTS:
            return LAYOUTS[version]
        if newest_layout().version < version <= self.latest:
            raise LayoutMissing
        raise VersionLost


@attrs.define(eq=False)
class Snapshot:
    """One generation of the answers to a key; the repository has the answer itself.

    Args:
        key: what it answers.
        stored_key: stands for the key, and its credentials, in the repository.
        generation: negative: the repository did not take it.
        taken_at: when assisted-service answered; in seconds of the process's clock, as all instants here.
        stored_at: the same, as stored: it distinguishes snapshots of one generation.
        layout: the version that makes its images.
        fingerprint: of the answer without its tokens; None: it has not been compared yet.
        entry: decides how long the snapshot may be seen; None until it is cached.
    """

    key: SnapshotKey
    stored_key: bytes
    generation: int
    taken_at: float
    stored_at: float
    layout: int
    fingerprint: bytes | None = None
    entry: CacheEntry | None = attrs.field(default=None, init=False, repr=False)

    @property
    def is_ended(self) -> bool:
        """True if assisted-service has refused it to these credentials, and answered otherwise since."""
        return self.entry is not None and self.entry.is_ended


@attrs.define(eq=False)
class CacheEntry:
    """The newest snapshot of a key, and older ones that mounts read. Instants are the clock's seconds.

    Args:
        snapshot: the newest.
        validated_at: when assisted-service last gave an equal answer; minus infinity: never.
        key_counter: the version of `stored_key` in `Coordination` when this was read.
        is_refused: nothing is served until assisted-service has given an equal answer again.
        refused_at: when it last refused; minus infinity: not to this process.
        revalidating_since: None: assisted-service is not being asked.
        retry_at: not to be asked again before.
        failing_since: when it was first asked of those times since its last answer at which it failed.
        error: the latest failure or refusal; None of a refusal: another process knows.
        had_no_slot: the latest attempt to ask it found no call slot.
        older: superseded snapshots, the latest first.
        is_ended: after a refusal there was another answer: none of the snapshots may be seen any more.
    """

    snapshot: Snapshot
    validated_at: float
    key_counter: int = 0
    is_refused: bool = False
    refused_at: float = -inf
    revalidating_since: float | None = None
    retry_at: float = 0.0
    failing_since: float | None = None
    error: ImageServiceError | None = None
    had_no_slot: bool = False
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
        self.replace(snapshot)
        self.record_answer(validated_at)

    def replace(self, snapshot: Snapshot) -> None:
        """Put a new generation of the same answer in the place of the newest, which becomes an older one."""
        self.add_older(self.snapshot)
        snapshot.entry = self
        self.snapshot = snapshot

    def is_superseded_by(self, stored: StoredSnapshot) -> bool:
        """Return True if what another process has stored takes the place of the newest.

        Numbers start again in a new repository. A snapshot that the repository did not take is superseded by
        any that it did, but those before it.
        """
        if self.snapshot.generation < 0:
            return not stored.is_refused and self.find_generation(stored.generation) is None
        newest = self.snapshot
        return (stored.generation, stored.taken_at) != (newest.generation, newest.stored_at)

    def update(self, stored: StoredSnapshot) -> None:
        """Record what another process has been answered."""
        if stored.is_refused:
            if not self.is_refused:
                self.record_refusal(None, at=-inf)
            return
        # What it answered before it refused is no news, even if the refusal was not stored.
        is_news = stored.validated_at > max(self.validated_at, self.refused_at)
        if is_news and stored.generation == self.snapshot.generation:
            self.record_answer(stored.validated_at)

    def record_answer(self, at: float) -> None:
        """Record that assisted-service has answered, and what it answered is the newest snapshot."""
        self.validated_at = at
        self.failing_since = self.error = None
        self.is_refused = self.had_no_slot = False
        self.retry_at = 0.0

    def record_refusal(self, refusal: ImageServiceError | None, at: float) -> None:
        """Record that assisted-service refuses the image; None: another process knows why, and when."""
        self.is_refused, self.failing_since, self.had_no_slot = True, None, False
        self.error, self.refused_at, self.retry_at = refusal and refusal.copy(), at, at + RETRY_SECONDS

    def record_failure(self, error: ImageServiceError, started_at: float, retry_at: float) -> None:
        """Record that assisted-service has failed to answer what it was asked at ``started_at``."""
        if self.failing_since is None and not self.is_refused:
            self.failing_since = started_at
        self.error, self.retry_at, self.had_no_slot = error.copy(), retry_at, False

    def end(self) -> None:
        """Let none of the snapshots be seen any more."""
        self.is_ended = self.is_refused = True

    def check_refusal(self) -> None:
        """Raise the reason if nothing may be served."""
        if self.is_refused:
            unknown = "assisted-service has refused this image; it is being asked again"
            raise self.error.copy() if self.error else Unavailable(unknown, retry_after_seconds=1)


class SnapshotEvent(enum.Enum):
    """What the metrics count about snapshots."""

    HIT = "hit"
    MISS = "miss"
    GRACE = "grace"
    EVICTION = "eviction"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    REFUSED = "refused"
    FAILED = "failed"


REVALIDATION_RESULTS = (
    SnapshotEvent.UNCHANGED,
    SnapshotEvent.CHANGED,
    SnapshotEvent.REFUSED,
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
        starts_over: it is a range at the beginning: the newest, if what the reader was reading is lost.
    """

    reader: Reader
    mode: ReadMode = ReadMode.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None
    starts_over: bool = False


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


class LayoutMissing(Unavailable):
    """A later release has made the image; another replica has that release."""

    must_close = True

    def __init__(self) -> None:
        super().__init__("a replica of a later release serves this image", retry_after_seconds=1)
