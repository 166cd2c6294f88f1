"""Where snapshots and mounts outlive the process: what any store of them does, whatever it is made of.

A key stands for a question and whoever asked it, a reader for a client with its credentials; both are keyed
digests (`sealing.Vault`), and a snapshot's payload is sealed before it comes here. So a store holds no
secret, and needs none. All instants are wall-clock seconds since 1970: a monotonic clock starts anew with
the process.

The generations of a key only go up, also past its end: nobody takes one for another that had its number.
They begin at 1 again when all of them have gone unused for so long that they were swept out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_GENERATIONS = 16
"""Of one key; a mount that is in progress for longer than as many changes loses its snapshot."""


@attrs.frozen
class Stored:
    """What a store knows of the newest generation of a key.

    Args:
        generation: counts from 1.
        taken_at: when assisted-service answered.
        validated_at: when it last said the same; not before ``taken_at``.
        ended: whoever asked may not see it any more. Its payload is gone, its number is used up.
    """

    generation: int
    taken_at: float
    validated_at: float
    ended: bool = False


@attrs.frozen
class Mount:
    """A client that reads an image, and what it is served from.

    Args:
        reader: who reads what.
        key: of its snapshot.
        generation: of its snapshot.
        base_sha256: of its base image, lower-case hex.
        read_at: when it last read.
        since: what the reader has read before then gives way to it, where that was another image. Not kept.
    """

    reader: bytes
    key: bytes
    generation: int
    base_sha256: str
    read_at: float
    since: float = attrs.field(eq=False)

    @since.default
    def _since(self) -> float:
        return self.read_at


class SnapshotStore(Protocol):
    """Keeps snapshots and mounts.

    Every method raises ``StoreFailed`` when the store cannot be read or written; what was kept before stays.
    What a method has done when it returns survives the process, however that ends.
    """

    async def latest(self, key: bytes) -> Stored | None:
        """Look up the newest generation.

        Args:
            key: of which question.

        Returns:
            it; one that has ended too; None: there never was one, or it was swept out.
        """

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Read a payload.

        Args:
            key: of which question.
            generation: which.

        Returns:
            as it was given to ``add``; None: it is not there, or not any more.
        """

    async def add(self, key: bytes, generation: int, sealed: bytes, taken_at: float) -> bool:
        """Keep a new generation, unless somebody else was faster; drop those beyond `KEPT_GENERATIONS`.

        Args:
            key: of which question.
            generation: one more than that of ``latest``, or 1.
            sealed: its payload.
            taken_at: when assisted-service answered; counts as validated and used then.

        Returns:
            whether this one is kept. False: there is this generation, or a newer one, of another writer:
            ``latest`` knows which.
        """

    async def validated(self, key: bytes, generation: int, at: float) -> None:
        """Take note that assisted-service said the same again.

        Args:
            key: of which question.
            generation: which; nothing happens where it is not there or has ended.
            at: when; one earlier than what is known changes nothing.
        """

    async def end(self, key: bytes, at: float) -> None:
        """Drop all generations of a key, and the mounts that read them.

        Args:
            key: of which question.
            at: when; the newest number is remembered from then as if it were in use.
        """

    async def save_mounts(self, mounts: Sequence[Mount]) -> None:
        """Keep mounts, all or none, each in the place of what its reader had before.

        Another process may have moved the same reader on: what it has read ``since``, of another image,
        stays, and so does what is later of the same one.

        Args:
            mounts: their snapshots are in use as of ``read_at``.
        """

    async def mount(self, reader: bytes) -> Mount | None:
        """Look up what a reader was served from.

        Args:
            reader: who reads what.

        Returns:
            it; its snapshot may be gone.
        """

    async def sweep(self, unused_since: float) -> int:
        """Drop what nobody used.

        Args:
            unused_since: snapshots neither taken, validated nor read by a mount since, unless an older
                generation has been, and mounts that have not read since.

        Returns:
            how many snapshots went, remembered ends among them.
        """

    async def close(self) -> None:
        """Let go of files and connections; nothing may be asked afterwards."""
