"""Which version a request is about: the newest of what it names, or the one that its reader is reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from image_service.errors import ImageServiceError
from image_service.images.reference import ISOS, ImageRef
from image_service.snapshots.composed_images import Lost
from image_service.snapshots.resolver import is_complete
from image_service.snapshots.snapshot import SnapshotKey
from image_service.snapshots.versions import Version

if TYPE_CHECKING:
    from image_service.images.reference import Credentials, Reader, Ref
    from image_service.snapshots.composer import Composer
    from image_service.snapshots.resolver import Resolver
    from image_service.snapshots.snapshot import Snapshot
    from image_service.snapshots.stored_mounts import Remembered

_LOST = "the image that was being read is not there any more"


class Pinned(Protocol):
    """What is pinned."""

    def key_of(self, question: SnapshotKey) -> bytes:
        """What stands for a question in the store."""

    def fresh(self, question: SnapshotKey) -> Snapshot | None:
        """The newest, if nothing need be asked."""

    async def newest(self, question: SnapshotKey) -> Snapshot:
        """The newest, for a new mount."""

    async def retained(self, question: SnapshotKey, generation: int) -> Snapshot | None:
        """The one that a mount read before this process began."""


class VersionFinder:
    """Finds versions.

    Args:
        composer: finds base images.
        resolver: completes references.
        snapshots: what is laid over base images.
    """

    def __init__(self, composer: Composer, resolver: Resolver, snapshots: Pinned) -> None:
        self._composer = composer
        self._resolver = resolver
        self._snapshots = snapshots

    def newest_at_once(self, reader: Reader) -> Version | None:
        """Find the newest version without asking.

        Args:
            reader: who wants what.

        Returns:
            the version; None: ask for the ``newest``.
        """
        ref = self._resolver.at_once(reader.ref, reader.credentials)
        if ref is None:
            return None
        snapshot = None
        if isinstance(ref, ImageRef):
            snapshot = self._snapshots.fresh(_question(ref, reader.credentials))
            if snapshot is None:
                return None
        try:
            return Version(ref, self._composer.find_base(ref), snapshot)
        except ImageServiceError:
            return None  # ``newest`` says why

    async def newest(self, reader: Reader) -> Version:
        """Find the newest version.

        Args:
            reader: who wants what.

        Returns:
            the version.

        Raises:
            ImageServiceError: there is none.
        """
        ref = await self._resolver.resolve(reader.ref, reader.credentials)
        base = self._composer.find_base(ref)
        if not ref.needs_customization:
            return Version(ref, base, None)
        return Version(ref, base, await self._snapshots.newest(_question(ref, reader.credentials)))

    async def remembered(self, reader: Reader, remembered: Remembered) -> Version:
        """Find the version that a reader is in the midst of.

        What its reference leaves open is what it was when the reader began: the infra-env may say otherwise
        by now, and nobody asks it.

        Args:
            reader: who reads.
            remembered: what.

        Returns:
            the version.

        Raises:
            Lost: it is not there any more.
            ImageServiceError: it must not be seen any more.
        """
        ref = self._completed(reader, remembered)
        base = self._composer.find_base(ref)
        question = _question(ref, reader.credentials)
        snapshot = await self._snapshots.retained(question, remembered.generation)
        if snapshot is None or snapshot.key != remembered.key or base.sha256 != remembered.base_sha256:
            raise Lost(_LOST)  # an alias may have moved on
        return Version(ref, base, snapshot)

    def _completed(self, reader: Reader, remembered: Remembered) -> Ref:
        """What a reader's reference leaves open, told by what was made of it."""
        ref = reader.ref
        if not ref.needs_customization or is_complete(ref):
            return ref
        for kind in (ref.kind,) if ref.kind else ISOS:
            question = SnapshotKey(ref.infra_env_id, kind.customization_kind, reader.credentials)
            base = self._composer.catalog.find_by_digest(remembered.base_sha256, kind)
            if base is not None and self._snapshots.key_of(question) == remembered.key:
                version, architecture = ref.version or base.version, ref.architecture or base.architecture
                return ImageRef(ref.infra_env_id, version, architecture, kind)
        raise Lost(_LOST)


def _question(ref: Ref, credentials: Credentials | None) -> SnapshotKey:
    if not ref.needs_customization or ref.kind is None:
        msg = f"nobody is asked about {ref}"
        raise TypeError(msg)
    return SnapshotKey(ref.infra_env_id, ref.kind.customization_kind, credentials)
