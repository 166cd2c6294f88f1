"""Which version a request is for. The infra-env completes it: version, architecture, kind.

Processes that share the repository share the answers: each is valid for the TTL in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.negative_cache import NegativeCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import ImageServiceError, NotFound, UpstreamQueueFull
from image_service.core.images.reference import (
    DEFAULT_ARCHITECTURE,
    ISOS,
    ImageRef,
    Kind,
    PinnedVersion,
    Ref,
    digest_of,
)
from image_service.server.snapshots.storage.snapshot import Question, SnapshotKey, VersionLost
from image_service.server.snapshots.storage.validity import FAILURES, RETRY_SECONDS
from image_service.server.snapshots.versions import Version

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import Credentials, Reader
    from image_service.server.assisted.responses import InfraEnv
    from image_service.server.snapshots.image_builder import ImageBuilder
    from image_service.server.snapshots.snapshots import Snapshots
    from image_service.server.snapshots.storage.repository import StoredMount
    from image_service.server.snapshots.storage.sealed_repository import SealedRepository
    from image_service.settings.upstream import SnapshotSettings

MAX_KNOWN = 4096
MAX_ASKING = 4096
"""References that are asked for at once; beyond that is more than can be answered in time."""
TIMEOUT_SECONDS = 1.0
"""How long a request waits for an answer if there is an older one."""

_RefKey: TypeAlias = "tuple[ImageRef, bytes | None]"
"""A reference, and the digest of the credentials."""


class FetchInfraEnv(Protocol):
    """Fetches an infra-env from assisted-service (see ``AssistedApi``)."""

    def __call__(
        self, infra_env_id: str, credentials: Credentials | None, /, *, is_revalidation: bool
    ) -> Awaitable[InfraEnv]:
        """Return a Deferred or a coroutine."""


@attrs.define
class _Resolved:
    """A complete reference; asked for again after the TTL, or at ``retry_at`` if asking has failed."""

    ref: ImageRef
    answered_at: float
    retry_at: float = 0.0


class Resolver:
    """Completes references."""

    def __init__(
        self,
        fetch: FetchInfraEnv,
        repository: SealedRepository,
        clock: IReactorTime,
        coordination: Coordination,
        settings: SnapshotSettings,
    ) -> None:
        self._fetch = fetch
        self._repository = repository
        self._clock = clock
        self._coordination = coordination
        self._settings = settings
        self._resolved: LruCache[_RefKey, _Resolved] = LruCache(MAX_KNOWN)
        self.refusals: NegativeCache[tuple[str, bytes | None]] = NegativeCache(clock)  # of infra-envs
        self._asking: SingleFlight[_RefKey, ImageRef] = SingleFlight(MAX_ASKING)

    @property
    def held_bytes(self) -> int:
        """What complete references take in memory, about."""
        return self._resolved.held_bytes

    def get_cached_ref(self, ref: Ref, credentials: Credentials | None) -> Ref | None:
        """Return the complete reference if it is known; else `resolve` it."""
        if not ref.needs_customization or is_complete(ref):
            return ref
        resolved = self._resolved.peek((ref, digest_of(credentials)))
        if resolved is None:
            return None
        valid_until = max(resolved.answered_at + self._settings.ttl_seconds, resolved.retry_at)
        return resolved.ref if self._clock.seconds() < valid_until else None

    async def resolve(self, ref: Ref, credentials: Credentials | None) -> Ref:
        """Return the complete reference.

        Raises:
            ImageServiceError: no version is named, or the infra-env cannot be fetched.
        """
        found = self.get_cached_ref(ref, credentials)
        if found is not None or not ref.needs_customization:
            return found or ref
        key = (ref, digest_of(credentials))
        self.refusals.check((ref.infra_env_id, digest_of(credentials)))
        asking = self._asking.join(key, lambda: self._resolve(key, credentials))
        older = self._find_older(key)
        if older is None:
            return await asking
        return await asking.addTimeout(TIMEOUT_SECONDS, self._clock, lambda *_: older.ref)

    def _find_older(self, key: _RefKey) -> _Resolved | None:
        """Return an answer that may be used while there is no other."""
        resolved = self._resolved.peek(key)
        limit_seconds = self._settings.ttl_seconds + self._settings.grace_seconds
        if resolved is None or self._clock.seconds() >= resolved.answered_at + limit_seconds:
            return None
        return resolved

    async def _resolve(self, key: _RefKey, credentials: Credentials | None) -> ImageRef:
        ref, credentials_digest = key
        is_known = self._resolved.peek(key) is not None
        try:
            infra_env, answered_at = await self._get_infra_env(
                ref.infra_env_id, credentials, is_known=is_known
            )
        except UpstreamQueueFull:
            raise  # nothing was asked, so nothing is known to fail
        except FAILURES:
            older = self._find_older(key)
            if older is None:
                raise
            older.retry_at = self._clock.seconds() + RETRY_SECONDS
            return older.ref
        except ImageServiceError as error:
            self.refusals.add((ref.infra_env_id, credentials_digest), error)
            self._resolved.pop(key)
            raise
        except Exception:
            self._resolved.pop(key)
            raise
        resolved = self._resolved[key] = _Resolved(_complete(ref, infra_env), answered_at)
        return resolved.ref

    async def _get_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_known: bool
    ) -> tuple[InfraEnv, float]:
        """Return an infra-env and when it was fetched: by this process, or by another within the TTL."""
        key = self._repository.seal_of_infra_env(infra_env_id, credentials).key
        async with self._coordination.lock(key) as is_held:
            # Sealed by the key of the database, if that was reached while this waited.
            seal = self._repository.seal_of_infra_env(infra_env_id, credentials)
            stored = await self._repository.load_infra_env(seal)
            now = self._clock.seconds()
            if stored is not None and stored[1] <= now < stored[1] + self._settings.ttl_seconds:
                return stored
            infra_env = await self._fetch(
                infra_env_id, credentials, is_revalidation=is_known or stored is not None
            )
            answered_at = self._clock.seconds()

            async def store() -> bool:
                await self._repository.save_infra_env(seal, infra_env, answered_at)
                return True

            if is_held():
                await self._coordination.run_if_shared(store)
            return infra_env, answered_at


def _complete(ref: ImageRef, infra_env: InfraEnv) -> ImageRef:
    version = ref.version or infra_env.openshift_version
    if version is None:
        raise NotFound("neither the request nor the infra-env names a version")
    architecture = ref.architecture or infra_env.architecture or DEFAULT_ARCHITECTURE
    return ImageRef(ref.infra_env_id, version, architecture, ref.kind or infra_env.kind or Kind.FULL_ISO)


def is_complete(ref: ImageRef) -> bool:
    """Return True if a reference leaves nothing open."""
    return ref.version is not None and ref.kind is not None and ref.architecture is not None


class VersionFinder:
    """Finds versions: the base images and snapshots of references."""

    def __init__(self, builder: ImageBuilder, resolver: Resolver, snapshots: Snapshots) -> None:
        self._builder = builder
        self.resolver = resolver
        self._snapshots = snapshots

    def get_cached_version(self, reader: Reader) -> Version | None:
        """Return the newest version if it is known; else `get` it."""
        ref = self.resolver.get_cached_ref(reader.ref, reader.credentials)
        if ref is None:
            return None
        snapshot = None
        if ref.needs_customization:
            key = SnapshotKey(ref.infra_env_id, _kind_of(ref), digest_of(reader.credentials))
            snapshot = self._snapshots.get_cached_snapshot(key)
            if snapshot is None:
                return None
        try:
            return Version(ref, self._builder.find_base(ref), snapshot)
        except ImageServiceError:
            return None  # ``get`` raises it

    async def get(self, reader: Reader) -> Version:
        """Return the newest version; raises ImageServiceError if there is none."""
        ref = await self.resolver.resolve(reader.ref, reader.credentials)
        base = self._builder.find_base(ref)
        if not ref.needs_customization:
            return Version(ref, base, None)
        return Version(ref, base, await self._snapshots.get(_question_of(ref, reader.credentials)))

    async def find_stored(self, reader: Reader, stored: StoredMount) -> Version:
        """Return the version that a reader was reading.

        What its reference leaves open is what it was when the reader started: the infra-env may say otherwise
        by now, and is not asked.

        Raises:
            VersionLost: it no longer exists.
            ImageServiceError: it must not be seen any more.
        """
        ref = self._complete(reader, stored)
        version = await self._find(
            ref, reader.credentials, PinnedVersion(stored.generation, stored.base_sha256)
        )
        if version.snapshot is None or version.snapshot.stored_key != stored.key:
            raise VersionLost
        return version

    async def find_pinned(self, reader: Reader, pin: PinnedVersion) -> Version:
        """Return the version that a pin names; raises as `find_stored`. The reference is complete."""
        return await self._find(reader.ref, reader.credentials, pin)

    async def _find(self, ref: Ref, credentials: Credentials | None, pin: PinnedVersion) -> Version:
        if not ref.needs_customization:
            msg = f"{ref} has no snapshot"
            raise TypeError(msg)
        base = self._find_base(ref, pin.base_sha256)
        snapshot = await self._snapshots.find_generation(_question_of(ref, credentials), pin.generation)
        if snapshot is None:
            raise VersionLost
        return Version(ref, base, snapshot)

    def _find_base(self, ref: ImageRef, sha256: str) -> BaseImage:
        """Return the base image that a reference stood for, though it may stand for another one now."""
        failure: ImageServiceError = VersionLost()
        try:
            base = self._builder.find_base(ref)
            if base.sha256 == sha256:
                return base
        except ImageServiceError as error:
            failure = error
        found = self._builder.catalog.find_by_digest(sha256, _kind_of(ref))
        if found is None or found.architecture != ref.architecture:
            raise failure
        return found

    def _complete(self, reader: Reader, stored: StoredMount) -> Ref:
        """Complete a reader's reference by what was made of it."""
        ref = reader.ref
        if not ref.needs_customization or is_complete(ref):
            return ref
        for kind in (ref.kind,) if ref.kind else ISOS:
            question = Question(ref.infra_env_id, kind.customization_kind, reader.credentials)
            base = self._builder.catalog.find_by_digest(stored.base_sha256, kind)
            if base is not None and self._snapshots.stored_key_of(question) == stored.key:
                version, architecture = ref.version or base.version, ref.architecture or base.architecture
                return ImageRef(ref.infra_env_id, version, architecture, kind)
        raise VersionLost


def _question_of(ref: ImageRef, credentials: Credentials | None) -> Question:
    return Question(ref.infra_env_id, _kind_of(ref), credentials)


def _kind_of(ref: ImageRef) -> Kind:
    """Return the kind that a complete reference's customization is asked for."""
    if ref.kind is None:
        msg = f"{ref} is not complete"
        raise TypeError(msg)
    return ref.kind.customization_kind
