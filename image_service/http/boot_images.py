"""Boot images for requests: of the newest snapshot, or of the one that the reader is in the midst of.

    no validator, one range      a mount: the version that this reader is reading, if it is reading any
    If-Match, If-Range           the version that they name, if it is retained
    everything else              the newest version

A version is one snapshot laid over one base. Composed ones are kept by the bytes they hold; one that gave
way is composed again, to the same bytes.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import attrs
from twisted.internet.defer import Deferred

from image_service.errors import ImageServiceError, Unprocessable, UpstreamTimeout
from image_service.http.mounts import Mount, Mounts
from image_service.http.respond import Representation
from image_service.images.base import BaseImage  # noqa: TC001 - attrs resolves annotations
from image_service.images.reference import ArtifactRef, ImageRef, Kind, Reader, Ref
from image_service.images.snapshot import Question, Snapshot
from image_service.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure

    from image_service.http.composer import Composer
    from image_service.http.resolver import Resolver
    from image_service.images.boot_image import BootImage
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials

PATIENCE_SECONDS = 2.5
"""How long a request waits for its image: firmware gives up after 5 s, and is to be told before 3."""
OVERHEAD_BYTES = 4 * 1024
"""What a composed image costs beside its bytes, about."""
MAX_REFUSED = 1024
MAX_RETAINED = 4096
"""Versions that can be found by their entity tags."""


_Tag: TypeAlias = "tuple[Ref, Credentials | None, str]"


class Reading(enum.Enum):
    """How a request reads."""

    NEWEST = "newest"  # HEAD, a whole GET and the rest
    CONTINUING = "continuing"  # a range without a validator
    NAMED = "named"  # names the version that it has a part of


@attrs.frozen
class Want:
    """What a request wants.

    Args:
        reader: who reads what.
        reading: how.
        etags: the entity tags that it names.
        date: the date that it names, as it stands there.
    """

    reader: Reader
    reading: Reading = Reading.NEWEST
    etags: tuple[str, ...] = ()
    date: str | None = None


def _identity_of_base(base: BaseImage) -> str:
    return base.sha256


def _identity_of_snapshot(snapshot: Snapshot | None) -> tuple[bytes, int] | None:
    return None if snapshot is None else (snapshot.key, snapshot.generation)


@attrs.frozen(cache_hash=True)
class Version:
    """An image as it is made of one base and one snapshot.

    Args:
        ref: which image; nothing left open.
        base: what is below.
        snapshot: what is laid over it; None: nothing.
    """

    ref: Ref
    base: BaseImage = attrs.field(eq=_identity_of_base)
    snapshot: Snapshot | None = attrs.field(eq=_identity_of_snapshot)


@attrs.frozen(eq=False)
class Composed:
    """A version with its bytes.

    Args:
        version: which.
        representation: what is served.
    """

    version: Version
    representation: Representation

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, about: the bytes that are not the base's, and all that is around them."""
        return self.representation.image.extents.literal_bytes + OVERHEAD_BYTES


class Snapshots(Protocol):
    """Where customizations are pinned."""

    def fresh(self, question: Question) -> Snapshot | None:
        """The newest, if nothing need be asked."""

    async def newest(self, question: Question) -> Snapshot:
        """The newest, for a new mount."""

    def may_go_on(self, snapshot: Snapshot) -> bool:
        """Whether ``keep`` has nothing to wait for."""

    async def keep(self, snapshot: Snapshot) -> None:
        """See that a mount may go on with it."""

    async def customization(self, snapshot: Snapshot) -> Customization:
        """What it holds."""

    async def retained(self, question: Question, generation: int) -> Snapshot | None:
        """The one that a mount read before this process began."""


class Memory(Protocol):
    """Where mounts outlive the process."""

    async def recall(self, reader: Reader) -> tuple[int, str, float] | None:
        """What a reader was reading: generation, the base's SHA-256, when."""

    async def save_mounts(self, mounts: Iterable[tuple[Reader, Snapshot, str, float]]) -> None:
        """Keep what is being read: snapshot, the base's SHA-256, when."""


class BootImages:
    """Finds and makes images.

    Args:
        composer: makes them.
        resolver: completes references.
        snapshots: what they are made of.
        memory: knows what was being read before this process began.
        clock: tells the time.
        window_seconds: how long after its last read a mount is in progress.
        held_bytes: what all composed images may hold in memory; the least recently used gives way.
    """

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        composer: Composer,
        resolver: Resolver,
        snapshots: Snapshots,
        memory: Memory,
        clock: IReactorTime,
        *,
        window_seconds: float,
        held_bytes: int,
    ) -> None:
        self._composer = composer
        self._resolver = resolver
        self._memory = memory
        self._snapshots = snapshots
        self._clock = clock
        self._window_seconds = window_seconds
        self._limit_bytes = held_bytes
        self._began_at = clock.seconds()
        self.mounts: Mounts[Version] = Mounts(clock, window_seconds)
        self._composed: OrderedDict[Version, Composed] = OrderedDict()
        self._held_bytes = 0
        self._refused: OrderedDict[Version, Unprocessable] = OrderedDict()
        self._retained: OrderedDict[_Tag, Version] = OrderedDict()
        self._composing: SingleFlight[Version, Composed] = SingleFlight()

    def at_once(self, want: Want) -> Composed | None:
        """Give what is wanted where nothing need be asked, composed or waited for.

        Args:
            want: what.

        Returns:
            the image; None: ``get`` it.
        """
        version = self._being_read(want)
        if version is None:
            version = self._newest_at_once(want.reader)
        elif version.snapshot is not None and not self._snapshots.may_go_on(version.snapshot):
            return None
        composed = None if version is None else self._composed.get(version)
        if composed is not None:
            self._composed.move_to_end(composed.version)
        return composed

    def get(self, want: Want) -> Deferred[Composed]:
        """Find or make what is wanted.

        Args:
            want: what.

        Returns:
            fires with the image; with UpstreamTimeout where it is not there after ``PATIENCE_SECONDS``. It
            is still being made then: asking again finds it.
        """
        found = Deferred.fromCoroutine(self._find(want))
        return _detached(found).addTimeout(PATIENCE_SECONDS, self._clock, _too_slow)

    def reads(self, want: Want, composed: Composed) -> Mount[Version]:
        """Note that an answer with content begins.

        Args:
            want: what was wanted.
            composed: what is served.

        Returns:
            the reader's mount, to be given to ``mounts.end`` when the answer is over.
        """
        mount = self.mounts.begin(want.reader, composed.version)
        mount.answers += 1
        tag = (want.reader.ref, want.reader.credentials, composed.representation.image.etag)
        self._retained[tag] = composed.version
        self._retained.move_to_end(tag)
        while len(self._retained) > MAX_RETAINED:
            self._retained.popitem(last=False)
        return mount

    async def save_mounts(self) -> None:
        """Keep the mounts in progress for a process that may follow this one."""
        await self._memory.save_mounts(
            (reader, mount.version.snapshot, mount.version.base.sha256, mount.read_at)
            for reader, mount in self.mounts.in_progress()
            if mount.version.snapshot is not None
        )

    async def _find(self, want: Want) -> Composed:
        version = self._being_read(want) or await self._recalled(want)
        if version is None:
            version = await self._newest(want.reader)
        elif version.snapshot is not None:
            await self._snapshots.keep(version.snapshot)
        return await self._compose(version)

    # Which version.

    def _being_read(self, want: Want) -> Version | None:
        """The version that the reader has a part of, if the request is for more of it."""
        if want.reading is Reading.NEWEST:
            return None
        reader = want.reader
        version = self.mounts.find(reader)
        if want.reading is Reading.NAMED and not (version and self._is_named(version, want)):
            tags = ((reader.ref, reader.credentials, etag) for etag in want.etags)
            version = next((self._retained[tag] for tag in tags if tag in self._retained), None)
        if version is not None and version.snapshot is not None and version.snapshot.tenure.ended:
            return None
        return version

    def _is_named(self, version: Version, want: Want) -> bool:
        composed = self._composed.get(version)
        if composed is None:
            return False
        return composed.representation.image.etag in want.etags or (
            want.date is not None and composed.representation.date == want.date
        )

    async def _recalled(self, want: Want) -> Version | None:
        """The version that the reader was in the midst of when the process before this one ended."""
        reader = want.reader
        is_young = self._clock.seconds() <= self._began_at + self._window_seconds
        if want.reading is Reading.NEWEST or not is_young or isinstance(reader.ref, ArtifactRef):
            return None
        remembered = await self._memory.recall(reader)
        if remembered is None:
            return None
        generation, base_sha256, read_at = remembered
        ref = await self._resolver.resolve(reader.ref, reader.credentials)
        base = self._composer.find_base(ref)
        if base.sha256 != base_sha256 or self._clock.seconds() > read_at + self._window_seconds:
            return None
        snapshot = await self._snapshots.retained(_question(ref, reader.credentials), generation)
        if snapshot is None:
            return None
        version = Version(ref, base, snapshot)
        self.mounts.begin(reader, version)
        return version

    async def _newest(self, reader: Reader) -> Version:
        ref = await self._resolver.resolve(reader.ref, reader.credentials)
        base = self._composer.find_base(ref)
        if isinstance(ref, ArtifactRef):
            return Version(ref, base, None)
        return Version(ref, base, await self._snapshots.newest(_question(ref, reader.credentials)))

    def _newest_at_once(self, reader: Reader) -> Version | None:
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
            return None  # ``get`` says why

    # Composed versions.

    async def _compose(self, version: Version) -> Composed:
        composed = self._composed.get(version)
        if composed is not None:
            self._composed.move_to_end(version)
            return composed
        if version in self._refused:
            raise self._refused[version]
        return await self._composing.join(version, lambda: self._make(version))

    async def _make(self, version: Version) -> Composed:
        """Compose; what cannot be laid over its base never will be."""
        try:
            composed = Composed(version, Representation(await self._image(version)))
        except Unprocessable as error:
            self._refused[version] = error
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            raise
        self._composed[version] = composed
        self._held_bytes += composed.held_bytes
        while self._held_bytes > self._limit_bytes and len(self._composed) > 1:
            _, oldest = self._composed.popitem(last=False)
            self._held_bytes -= oldest.held_bytes
        return composed

    async def _image(self, version: Version) -> BootImage:
        ref, base, snapshot = version.ref, version.base, version.snapshot
        if isinstance(ref, ArtifactRef):
            return self._composer.artifact(ref, base)
        if snapshot is None:
            msg = f"{ref} has no snapshot"
            raise TypeError(msg)
        if ref.kind is Kind.INITRD_ADDRSIZE:
            initrd = attrs.evolve(version, ref=attrs.evolve(ref, kind=Kind.PXE_INITRD))
            image = (await self._compose(initrd)).representation.image
            return self._composer.initrd_addrsize(ref, base, image)
        return await self._composer.image(ref, base, await self._snapshots.customization(snapshot))


def _question(ref: Ref, credentials: Credentials | None) -> Question:
    if isinstance(ref, ArtifactRef) or ref.kind is None:
        msg = f"nobody is asked about {ref}"
        raise TypeError(msg)
    return Question(ref.infra_env_id, ref.kind.question, credentials)


def _detached(work: Deferred[Composed]) -> Deferred[Composed]:
    """A waiter of its own: who stops waiting does not stop the work."""
    waiter: Deferred[Composed] = Deferred()

    def tell(result: Composed | Failure) -> None:
        if not waiter.called:
            waiter.callback(result)

    work.addBoth(tell)
    return waiter


def _too_slow(_: object, seconds: float) -> NoReturn:
    raise UpstreamTimeout(
        f"the image could not be made within {seconds:g} s; it is still being made", retry_after_seconds=1
    )
