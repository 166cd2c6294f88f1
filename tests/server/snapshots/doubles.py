"""Doubles of everything that boot images are made of: they count calls, and answer when a test says so."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import Coordination
from image_service.core.errors import Unavailable, UnknownBaseImage
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.reference import ImageRef, Kind
from image_service.server.assisted.caller import CALLER, Caller
from image_service.server.assisted.responses import IgnitionConfig, InfraEnv
from image_service.server.snapshots.build_snapshots import connect_boot_images
from image_service.server.snapshots.image_builder import ImageBuilder
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.settings.upstream import SnapshotSettings
from tests.core.formats.filesystems.iso_builder import CREATED, build_live_iso, live_files
from tests.core.images.building import base_image
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import run_now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from image_service.core.images.base_image import BaseImage, NmstateImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.reference import Credentials
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.snapshots.storage.snapshot import SnapshotEvent

    InThread = Callable[[Callable[[], BootImage]], Awaitable[BootImage]]

T = TypeVar("T")

ID = "a6c0ff12-3456-4789-8abc-def012345678"
VERSION = "4.20"
FULL, DISCONNECTED = Kind.FULL_ISO, Kind.DISCONNECTED_ISO
REF = ImageRef(ID, VERSION, "x86_64", FULL)
CONFIG = b'{"ignition": {"version": "3.2.0"}}'
MODIFIED = CREATED.replace(year=CREATED.year + 1)
TTL_SECONDS = 60
GRACE_SECONDS = 600
MAX_AGE_SECONDS = 3600
WINDOW_SECONDS = 60
CACHE_BYTES = 1024 * 1024
BASE_URL = "https://images.test"


@attrs.define(eq=False)
class FakeCatalog:
    """A catalog of the images that it is given.

    Args:
        images: by version, architecture and kind.
        superseded: that are kept.
        asked: how often for each.
        mounts: of each base image, as they were last counted.
        is_opening: superseded ones are being opened.
    """

    images: dict[tuple[str, str, Kind], BaseImage]
    superseded: list[BaseImage] = attrs.field(factory=list)
    asked: Counter[tuple[str, str, Kind]] = attrs.field(factory=Counter)
    mounts: Mapping[str, int] = attrs.field(factory=dict)
    is_opening: bool = False

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """As ``Catalog.find_base_image``."""
        self.asked[version, architecture, kind] += 1
        if (version, architecture, kind.base_kind) in self.images:
            return self.images[version, architecture, kind.base_kind]
        for (_, there, of), base in self.images.items():
            if (base.version, there, of) == (version, architecture, kind.base_kind):
                return base
        raise UnknownBaseImage(f"there is no {version} for {architecture}")

    def find_by_digest(self, sha256: str, kind: Kind) -> BaseImage | None:
        """As ``Catalog.find_by_digest``."""
        bases = (base for (_, _, of), base in self.images.items() if of is kind.base_kind)
        found = next((base for base in (*bases, *self.superseded) if base.sha256 == sha256), None)
        if found is None and self.is_opening:
            raise Unavailable("the base image is being opened", retry_after_seconds=5)
        return found

    def keeps(self, base: BaseImage) -> bool:
        """As ``SupersededBases.keeps``."""
        return any(each is base for each in self.superseded)

    def record_mounts(self, mounts: Mapping[str, int]) -> None:
        """As ``SupersededBases.record_mounts``."""
        self.mounts = mounts

    def release(self, base: BaseImage) -> None:
        """As ``SupersededBases.release``."""
        self.superseded = [each for each in self.superseded if each is not base]


@attrs.define(eq=False)
class FakeDerivedFiles:
    """Templates that are there as soon as the test has put them there.

    Args:
        iso: the minimal ISO of every base image.
        archive: with nmstatectl.
    """

    iso: BaseImage | None = None
    archive: NmstateImage | None = None

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """As ``Templates.minimal_iso``."""
        if self.iso is None:
            raise Unavailable(f"a minimal ISO of {base.name} is being made", retry_after_seconds=5)
        return self.iso

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """As ``Templates.nmstate``."""
        if self.archive is None:
            raise Unavailable(f"nmstatectl of {base.name} is being read", retry_after_seconds=5)
        return self.archive


def infra_env_of(
    arguments: Iterable[str] = (),
    version: str | None = None,
    kind: Kind | None = None,
    architecture: str | None = None,
) -> InfraEnv:
    """What an infra-env says about itself; the arguments are to be appended."""
    operations = tuple(KernelArgument(Operation.APPEND, argument) for argument in arguments)
    return InfraEnv(operations, version, kind, architecture)


@attrs.define(eq=False)
class FakeAssistedService:
    """assisted-service.

    Args:
        config: of every infra-env.
        modified: its date.
        reported: what every infra-env says about itself.
        initrd: the ramdisk of every infra-env.
        calls: the questions in their order: which, whose, for what, and by whose credentials.
        callers: for each question, the client request that needs its answer, if any.
        revalidations: for each question, whether an earlier answer was in use.
        held: while this is a list, questions wait in it, to be let go by the test.
        failures: what to raise instead of an answer, by question.
        cancelled: the questions that were taken back.
    """

    config: bytes = CONFIG
    modified: datetime | None = MODIFIED
    reported: InfraEnv = attrs.field(factory=infra_env_of)
    initrd: bytes | None = None
    calls: list[tuple[str, str, Kind | None, Credentials | None]] = attrs.field(factory=list)
    callers: list[Caller | None] = attrs.field(factory=list)
    revalidations: list[bool] = attrs.field(factory=list)
    held: list[Deferred[None]] | None = None
    failures: dict[str, Exception] = attrs.field(factory=dict)
    cancelled: list[str] = attrs.field(factory=list)

    async def fetch_ignition(
        self,
        infra_env_id: str,
        discovery_iso_type: Kind | None,
        credentials: Credentials | None,
        *,
        is_revalidation: bool = False,
    ) -> IgnitionConfig:
        """As `AssistedService.fetch_ignition`."""
        self.revalidations.append(is_revalidation)
        await self._ask("ignition", infra_env_id, discovery_iso_type, credentials)
        return IgnitionConfig(self.config, self.modified)

    async def fetch_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> InfraEnv:
        """As `AssistedService.fetch_infra_env`."""
        self.revalidations.append(is_revalidation)
        await self._ask("infra-env", infra_env_id, None, credentials)
        return self.reported

    async def fetch_ramdisk(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> bytes | None:
        """As `AssistedService.fetch_ramdisk`."""
        self.revalidations.append(is_revalidation)
        await self._ask("ramdisk", infra_env_id, None, credentials)
        return self.initrd

    @property
    def asked(self) -> list[str]:
        """The questions, in their order."""
        return [call[0] for call in self.calls]

    def release(self) -> None:
        """Answer what is being waited for, and what comes from now on."""
        held, self.held = self.held or [], None
        for deferred in held:
            if not deferred.called:
                deferred.callback(None)

    async def _ask(
        self, question: str, infra_env_id: str, kind: Kind | None, credentials: Credentials | None
    ) -> None:
        self.calls.append((question, infra_env_id, kind, credentials))
        self.callers.append(CALLER.get(None))
        if question in self.failures:
            raise self.failures[question]
        if self.held is not None:
            gate: Deferred[None] = Deferred()
            self.held.append(gate)
            try:
                await gate
            except CancelledError:
                self.cancelled.append(question)
                raise


@attrs.define(eq=False)
class ManualThreads:
    """Threads whose work is done when the test says so."""

    waiting: list[tuple[Callable[[], BootImage], Deferred[BootImage]]] = attrs.field(factory=list)

    def run(self, work: Callable[[], BootImage]) -> Deferred[BootImage]:
        """Take work."""
        done: Deferred[BootImage] = Deferred()
        self.waiting.append((work, done))
        return done

    def work(self) -> None:
        """Do what was taken."""
        for work, done in self.waiting:
            try:
                done.callback(work())
            except Exception as error:  # noqa: BLE001 - as a thread pool does
                done.errback(error)
        self.waiting.clear()


@attrs.define(eq=False)
class World:
    """Boot images, and what they are made of."""

    catalog: FakeCatalog
    clock: Clock = attrs.field(factory=Clock)
    assisted: FakeAssistedService = attrs.field(factory=FakeAssistedService)
    threads: ManualThreads = attrs.field(factory=ManualThreads)
    derived: FakeDerivedFiles = attrs.field(factory=FakeDerivedFiles)
    store: MemoryRepository = attrs.field(factory=MemoryRepository)
    cache_bytes: int = CACHE_BYTES
    wall_offset: float = 0.0
    clock_error_seconds: float | None = None
    base_url: str = BASE_URL
    archive: SealedRepository = attrs.field(init=False)
    images: ImageFinder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.images = self.make_images()

    def get_wall_time(self) -> float:
        """As ``time.time``."""
        return self.clock.seconds() + self.wall_offset

    def make_images(
        self,
        in_thread: InThread | None = None,
        coordination: Coordination | None = None,
        count: Callable[[SnapshotEvent], None] = lambda _: None,
    ) -> ImageFinder:
        """Boot images of this world that nobody has asked for yet."""
        self.archive = SealedRepository(
            self.store,
            SnapshotCipher(bytes(32)),
            run_now,
            self.clock,
            self.get_wall_time,
            get_base_url=lambda: self.base_url,
            clock_error_seconds=self.clock_error_seconds,
        )
        return connect_boot_images(
            SnapshotSettings(
                ttl_seconds=TTL_SECONDS,
                grace_seconds=GRACE_SECONDS,
                max_age_seconds=MAX_AGE_SECONDS,
                cache_bytes=self.cache_bytes,
                mount_window_seconds=WINDOW_SECONDS,
            ),
            self.assisted,
            ImageBuilder(self.catalog, self.derived, in_thread or self.threads.run, lambda: self.base_url),
            self.archive,
            self.clock,
            count=count,
            coordination=coordination or Coordination(),
        )


def evict_everything(world: World) -> None:
    """As when much else is read: composed images, and the answers that they are made of."""
    composed, recent = world.images.cache._composed, world.archive._recent
    for version in tuple(composed):
        composed.pop(version)
    for customization in tuple(recent):
        recent.pop(customization)


@contextmanager
def world() -> Iterator[World]:
    """A world with a full ISO for two architectures, and a disconnected one."""
    with ExitStack() as open_files:

        def base(architecture: str, *, disconnected: bool = False) -> BaseImage:
            iso = build_live_iso({**live_files(), "coreos/for": f"{architecture} {disconnected}".encode()})
            return open_files.enter_context(
                base_image(iso, architecture=architecture, disconnected=disconnected)
            )

        images = {
            (VERSION, "x86_64", FULL): base("x86_64"),
            (VERSION, "aarch64", FULL): base("aarch64"),
            (VERSION, "x86_64", DISCONNECTED): base("x86_64", disconnected=True),
        }
        yield World(FakeCatalog(images))
