"""The interface of snapshot repositories: where snapshots and mounts outlive the process.

A key stands for what was asked and by whom, a reader key for a client with its credentials; both are keyed
digests, and a payload is sealed (`encryption.SnapshotCipher`): a repository holds no secret. All instants are
wall-clock seconds since 1970, because a monotonic clock starts again with the host. The wall clock may be
set: what is stored may be in the future, and is replaced then.

The generations of a key only increase, also past an end, so that a number never stands for two snapshots.
A new key starts at a random number: it may have had others before, which processes still serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_GENERATIONS = 16
"""Of one key; a mount in progress for longer than as many changes loses its snapshot."""
KEPT_CREDENTIALS = 64
"""Of one infra-env; beyond that, those are removed that have not been used for longest."""
NO_LAYOUT = 0
"""In place of the byte layout of what no image is made of."""


@attrs.frozen
class StoredSnapshot:
    """The newest generation of a key, without its payload.

    Args:
        generation: greater than 0.
        taken_at: when assisted-service answered.
        validated_at: when it last gave an equal answer; not before ``taken_at``.
        is_refused: assisted-service has refused it since; after ``end`` its payload is gone, too.
        layout: of its images.
    """

    generation: int
    taken_at: float
    validated_at: float
    is_refused: bool = False
    layout: int = NO_LAYOUT


@attrs.frozen
class Owner:
    """Whose a snapshot is, as keyed digests."""

    infra_env: bytes
    credentials: bytes


@attrs.frozen
class StoredMount:
    """A client that reads an image, and the version that it reads.

    Args:
        key: of its snapshot.
        generation: of its snapshot.
        base_sha256: of its base image, lower-case hex.
        read_at: when it last read.
        replaces_before: a stored mount of another image is replaced if it last read before this time. Not
            stored.
    """

    reader: bytes
    key: bytes
    generation: int
    base_sha256: str
    read_at: float
    replaces_before: float = attrs.field(eq=False)

    @replaces_before.default
    def _replaces_before(self) -> float:
        return self.read_at


class SnapshotRepository(Protocol):
    """Stores snapshots and mounts.

    Every method raises ``StoreFailed`` if the repository cannot be read or written, and changes nothing then.
    Snapshots and mounts may be missing at any time, because others needed their room.
    What a method has written when it returns survives the process.
    """

    async def find_newest(self, key: bytes) -> StoredSnapshot | None:
        """Return the newest generation of a key, also if it is refused."""

    async def has_ended(self, key: bytes, generation: int) -> bool:
        """Return True if a generation is known to have ended, or one after it."""

    async def find_layout(self, key: bytes, generation: int) -> int | None:
        """Return the layout of a generation; None: it is not there any more."""

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Return a payload as it was given to ``add``; None: it is not there any more."""

    async def add(  # noqa: PLR0913 - a row
        self,
        key: bytes,
        generation: int,
        sealed: bytes,
        taken_at: float,
        owner: Owner | None = None,
        *,
        layout: int = NO_LAYOUT,
    ) -> bool:
        """Store a new generation, and remove those beyond `KEPT_GENERATIONS` and `KEPT_CREDENTIALS`.

        Args:
            generation: one more than that of ``find_newest``, or a random number.
            taken_at: when assisted-service answered; counts as validated and used then.
            owner: of the key; None: is not counted.

        Returns:
            False: another writer has stored this generation, or a newer one; nothing was stored.

        Raises:
            StoreFull: there is no room for it.
        """

    async def record_validation(self, key: bytes, generation: int, at: float) -> bool:
        """Record an equal answer of assisted-service, which takes a refusal back.

        The time replaces the stored one, which may be later: of a clock that was ahead.

        Returns:
            False: the generation is not there, or has ended.
        """

    async def record_refusal(self, key: bytes, generation: int) -> None:
        """Record that assisted-service refuses it to its credentials; that does not count as use."""

    async def end(self, key: bytes, at: float) -> None:
        """Remove all generations of a key, but remember the newest number, and the mounts: they are lost."""

    async def save_mounts(self, mounts: Sequence[StoredMount], now: float) -> None:
        """Store mounts, all or none, each in the place of its reader's.

        A mount is kept instead if it is of another image and has read since ``replaces_before``, or of the
        same image and has read later; but not if it has read after ``now``.
        Their snapshots count as used at ``read_at``.
        """

    async def find_mount(self, reader: bytes) -> StoredMount | None:
        """Return a reader's mount; its snapshot may be gone."""

    async def count_mounts(self, read_since: float) -> dict[str, int]:
        """Return how many mounts have read each base image since a time, by its SHA-256."""

    async def remove_unused(self, unused_since: float, now: float) -> int:
        """Remove what has not been used.

        Args:
            now: a snapshot used after that counts as used now; a mount read after that is removed.
            unused_since: snapshots neither taken, validated nor read by a mount since, unless an older
                generation has been, and mounts that have not read since.

        Returns:
            the number of snapshots removed, remembered ends among them.
        """

    async def close(self) -> None:
        """Close files and connections."""
