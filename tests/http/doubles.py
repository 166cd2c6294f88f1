"""Everything that boot images are made of, counting what is asked of it and answering when it is told to."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from image_service.errors import NotFound
from image_service.http.boot_images import BootImages
from image_service.images.reference import ImageRef, Kind
from tests.coreos.iso_builder import CREATED, build_live_iso
from tests.images.building import base_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from image_service.images.base import BaseImage
    from image_service.images.boot_image import BootImage
    from image_service.images.reference import Credentials

ID = "a6c0ff12-3456-4789-8abc-def012345678"
VERSION = "4.20"
FULL, DISCONNECTED = Kind.FULL_ISO, Kind.DISCONNECTED_ISO
REF = ImageRef(ID, VERSION, "x86_64", FULL)
CONFIG = b'{"ignition": {"version": "3.2.0"}}'
MODIFIED = CREATED.replace(year=CREATED.year + 1)
TTL_SECONDS = 60


@attrs.define(eq=False)
class CountingCatalog:
    """A catalog of the images that it is given.

    Args:
        images: by version, architecture and kind.
        asked: how often for each.
    """

    images: dict[tuple[str, str, Kind], BaseImage]
    asked: Counter[tuple[str, str, Kind]] = attrs.field(factory=Counter)

    def find(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """As ``Catalog.find``."""
        self.asked[version, architecture, kind] += 1
        if (version, architecture, kind) not in self.images:
            raise NotFound(f"there is no {version} for {architecture}")
        return self.images[version, architecture, kind]


@attrs.frozen
class Ignition:
    """What ``CountingAssisted.ignition`` answers."""

    config: bytes
    modified: datetime | None


@attrs.frozen
class InfraEnv:
    """What ``CountingAssisted.infra_env`` answers."""

    kernel_arguments: tuple[str, ...] = ()
    openshift_version: str | None = None
    kind: Kind | None = None
    architecture: str | None = None


@attrs.define(eq=False)
class CountingAssisted:
    """assisted-service.

    Args:
        config: of every infra-env.
        modified: its date.
        told: of every infra-env itself.
        calls: the questions in their order: which, whose, for what, and by whose credentials.
        held: while this is a list, questions wait in it, to be let go by the test.
        failures: what to raise instead of an answer, by question.
        cancelled: the questions that were taken back.
    """

    config: bytes = CONFIG
    modified: datetime | None = MODIFIED
    told: InfraEnv = InfraEnv()
    calls: list[tuple[str, str, Kind | None, Credentials | None]] = attrs.field(factory=list)
    held: list[Deferred[None]] | None = None
    failures: dict[str, Exception] = attrs.field(factory=dict)
    cancelled: list[str] = attrs.field(factory=list)

    async def ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> Ignition:
        """As ``AssistedService.ignition``."""
        await self._ask("ignition", infra_env_id, discovery_iso_type, credentials)
        return Ignition(self.config, self.modified)

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """As ``AssistedService.infra_env``."""
        await self._ask("infra-env", infra_env_id, None, credentials)
        return self.told

    @property
    def asked(self) -> list[str]:
        """The questions, in their order."""
        return [call[0] for call in self.calls]

    def let_go(self) -> None:
        """Answer what is being waited for, and what comes from now on."""
        held, self.held = self.held or [], None
        for deferred in held:
            if not deferred.called:
                deferred.callback(None)

    async def _ask(
        self, question: str, infra_env_id: str, kind: Kind | None, credentials: Credentials | None
    ) -> None:
        self.calls.append((question, infra_env_id, kind, credentials))
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
class HeldThreads:
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

    catalog: CountingCatalog
    clock: Clock = attrs.field(factory=Clock)
    assisted: CountingAssisted = attrs.field(factory=CountingAssisted)
    threads: HeldThreads = attrs.field(factory=HeldThreads)
    images: BootImages = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.images = BootImages(self.catalog, self.assisted, self.clock, self.threads.run, TTL_SECONDS)


@contextmanager
def world() -> Iterator[World]:
    """A world with a full ISO for two architectures, and a disconnected one."""
    with ExitStack() as open_files:

        def base(architecture: str, *, disconnected: bool = False) -> BaseImage:
            iso = build_live_iso()
            return open_files.enter_context(
                base_image(iso, architecture=architecture, disconnected=disconnected)
            )

        images = {
            (VERSION, "x86_64", FULL): base("x86_64"),
            (VERSION, "aarch64", FULL): base("aarch64"),
            (VERSION, "x86_64", DISCONNECTED): base("x86_64", disconnected=True),
        }
        yield World(CountingCatalog(images))
