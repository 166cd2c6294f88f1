"""A snapshot: one answer of assisted-service, and the question that it answers."""

from __future__ import annotations

import attrs

from image_service.images.reference import Credentials, Kind  # noqa: TC001 - attrs resolves annotations


@attrs.frozen(cache_hash=True)
class SnapshotKey:
    """What assisted-service is asked for: all kinds of image that ask the same share the answer.

    Args:
        infra_env_id: whose.
        kind: an ISO, or the initrd for PXE.
        credentials: who asks; nobody gets what was answered to other credentials.
    """

    infra_env_id: str
    kind: Kind
    credentials: Credentials | None


@attrs.define(eq=False)
class SnapshotValidity:
    """For how long the generations of a question may be seen at all: until assisted-service refuses them."""

    ended: bool = False


@attrs.define(eq=False)
class Snapshot:
    """One generation of answers to a question.

    Args:
        question: the question.
        key: stands for it in the store.
        generation: counts from 1; below 0: the store did not take it.
        taken_at: when it was answered, seconds since the epoch.
        fingerprint: tells whether a later answer is the same; None: none has been compared with it yet.
        tenure: shared with the other generations.
    """

    question: SnapshotKey
    key: bytes
    generation: int
    taken_at: float
    fingerprint: bytes | None = None
    tenure: SnapshotValidity = attrs.field(factory=SnapshotValidity, repr=False)
