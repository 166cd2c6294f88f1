"""Snapshots: what they answer, and what is known of them in this process. Knows no clock."""

from __future__ import annotations

import enum
from math import inf
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import NotFound
from image_service.core.images.reference import Credentials, Kind, digest_of

if TYPE_CHECKING:
    from image_service.server.snapshots.storage.encryption import Seal
    from image_service.server.snapshots.storage.validity import Validity


@attrs.frozen(cache_hash=True)
class SnapshotKey:
    """What caches know a question by: kinds of image with one question share it.

    Args:
        infra_env_id: lower-case UUID.
        kind: an ISO, or the initrd for PXE.
        credentials_digest: no client gets the answer to other credentials.
    """

    infra_env_id: str
    kind: Kind
    credentials_digest: bytes | None = attrs.field(repr=False)


@attrs.frozen
class Question:
    """What assisted-service is asked, with the credentials of a request; no cache keeps it."""

    infra_env_id: str
    kind: Kind
    credentials: Credentials | None
    key: SnapshotKey = attrs.field(init=False, eq=False, repr=False)

    @key.default
    def _make_key(self) -> SnapshotKey:
        return SnapshotKey(self.infra_env_id, self.kind, digest_of(self.credentials))


@attrs.define(eq=False)
class Snapshot:
    """One generation of the answers to a key; the repository has the answer itself.

    Args:
        key: what it answers.
        seal: what stands for the key, and its credentials, in the repository.
        generation: negative: the repository did not take it.
        taken_at: when assisted-service answered; in seconds of the process's clock, as all instants here.
        stored_at: the same, as stored: it distinguishes snapshots of one generation.
        layout: the version of the byte layout of its images.
        base_url: see `Customization`; known of the newest.
        fingerprint: of the answer without its tokens; None: it has not been compared yet.
        validity: how long it may be seen, shared with the newest of its key; None until it is cached.
        is_newest: it is the one that new mounts get.
    """

    key: SnapshotKey
    seal: Seal
    generation: int
    taken_at: float
    stored_at: float
    layout: int
    base_url: str | None = None
    fingerprint: bytes | None = None
    validity: Validity | None = attrs.field(default=None, init=False, repr=False)
    is_newest: bool = attrs.field(default=False, init=False)
    stored_key: bytes = attrs.field(init=False, repr=False)

    @stored_key.default
    def _take_stored_key(self) -> bytes:
        return self.seal.key

    @property
    def is_stored(self) -> bool:
        """True if the repository took it."""
        return self.generation > 0

    @property
    def is_ended(self) -> bool:
        """True if assisted-service has refused it to these credentials, and answered otherwise since."""
        return self.validity is not None and self.validity.is_ended

    def join(self, validity: Validity, *, is_newest: bool) -> None:
        """Share the validity of the key's newest."""
        self.validity, self.is_newest = validity, is_newest

    def renumber(self, generation: int) -> None:
        """Record under which number the repository has it."""
        self.generation = generation

    def lose(self) -> None:
        """Record that the repository has lost it: new mounts get another one."""
        self.taken_at = -inf


class VersionLost(NotFound):
    """What a version was made of is not stored any more, or has ended: it cannot be composed again."""

    def __init__(self) -> None:
        super().__init__("the image that was being read no longer exists")


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
