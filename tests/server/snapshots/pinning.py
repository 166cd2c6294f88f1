"""Snapshots with doubles of assisted-service and of the repository."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from image_service.common.concurrency.coordination import Coordination
from image_service.core.errors import (
    Conflict,
    Forbidden,
    IgnitionInvalid,
    InvalidRequest,
    NotFound,
    StoreFailed,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
)
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Credentials, CredentialScheme, Kind
from image_service.server.snapshots.snapshots import Snapshots
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.snapshot import Question
from image_service.settings.upstream import SnapshotSettings
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import outcome, run_now
from tests.server.standalone.tokens import TokenSigner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from image_service.server.snapshots.storage.repository import SnapshotRepository
    from image_service.server.snapshots.storage.snapshot import Snapshot
    from tests.conftest import LoggedFailures

T = TypeVar("T")

ID = "a6c0ff12-3456-4789-8abc-def012345678"
KEY = Question(ID, Kind.FULL_ISO, None)
SETTINGS = SnapshotSettings(
    ttl_seconds=60, grace_seconds=600, max_age_seconds=3600, cache_bytes=1024 * 1024, mount_window_seconds=60
)
SECRET = b"s" * 32
NOW = 1_700_000_000.0

_SIGNER = TokenSigner()


CREDENTIALS = [
    None,
    Credentials(CredentialScheme.API_KEY, "one"),
    Credentials(CredentialScheme.API_KEY, "two"),
    Credentials(CredentialScheme.IMAGE_TOKEN, "one"),
    Credentials(CredentialScheme.AUTHORIZATION, "one"),
    Credentials(CredentialScheme.API_KEY, "s3cr3t-key"),
]


TTL, GRACE, MAX_AGE = SETTINGS.ttl_seconds, SETTINGS.grace_seconds, SETTINGS.max_age_seconds
MOMENT = 0.01
FAILING = [UpstreamError("down"), UpstreamTimeout("slow"), Unavailable("429"), KeyError("nobody foresaw it")]
REFUSING = [
    Unauthorized("401"),
    Forbidden("403"),
    NotFound("404"),
    InvalidRequest("400"),
    Conflict("409"),
    IgnitionInvalid("422"),
    UpstreamRefused("302"),
]
OTHERS = [
    Question(ID.replace("a", "b"), Kind.FULL_ISO, None),
    Question(ID, Kind.MINIMAL_ISO, None),
    Question(ID, Kind.FULL_ISO, Credentials(CredentialScheme.API_KEY, "one")),
    Question(ID, Kind.FULL_ISO, Credentials(CredentialScheme.API_KEY, "two")),
    Question(ID, Kind.FULL_ISO, Credentials(CredentialScheme.IMAGE_TOKEN, "one")),
]


def customization(text: str = "", modified: datetime | None = None, **parts: Any) -> Customization:
    """An answer with a token of its own in it, and otherwise equal unless arguments differ."""
    token = _SIGNER.sign(ID)
    config = json.dumps({"ignition": {"version": "3.2.0"}, "text": text, "token": token})
    arguments = parts.pop("kernel_arguments", ())
    return Customization(config.encode(), arguments, modified, **parts)


@attrs.define(eq=False)
class Upstream:
    """assisted-service: a new token in each answer.

    Args:
        text: in the configs that it answers with.
        parts: of its answers, beside the config.
        error: raised instead of an answer.
        asked: all that was asked.
        revalidations: for each question, whether an earlier answer was in use.
        held: while this is a list, who asks waits in it.
    """

    text: str = ""
    parts: dict[str, Any] = attrs.field(factory=dict)
    error: Exception | None = None
    asked: list[Question] = attrs.field(factory=list)
    revalidations: list[bool] = attrs.field(factory=list)
    held: list[Deferred[None]] | None = None

    async def ask(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None, *, is_revalidation: bool
    ) -> Customization:
        self.asked.append(Question(infra_env_id, kind, credentials))
        self.revalidations.append(is_revalidation)
        if self.held is not None:
            self.held.append(Deferred())
            await self.held[-1]
        if self.error is not None:
            raise self.error
        return customization(self.text, **self.parts)

    def release(self) -> None:
        """Answer who waits, and who comes from now on."""
        held, self.held = self.held or [], None
        for deferred in held:
            deferred.callback(None)


@attrs.define(eq=False)
class FaultyRepository:
    """A repository whose methods can be made to fail.

    Args:
        store: does the work.
        broken: the names of the methods that fail.
        error: what they fail with; None: StoreFailed.
        gate: None, or what every method waits for.
        called: how often, by name.
    """

    store: SnapshotRepository = attrs.field(factory=MemoryRepository)
    broken: set[str] = attrs.field(factory=set)
    error: Exception | None = None
    gate: Deferred[None] | None = None
    called: Counter[str] = attrs.field(factory=Counter)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.store, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self.called[name] += 1
            if self.gate is not None:
                await self.gate
            if name in self.broken:
                raise self.error or StoreFailed(f"{name} fails")
            return await method(*arguments, **options)

        return call


def _make_clock() -> Clock:
    clock = Clock()
    clock.advance(NOW)
    return clock


@attrs.define(eq=False)
class Pinning:
    """Snapshots, and what they are made with.

    Args:
        store: may be shared with others.
        upstream: may be too.
        clock: may be too.
        secret: of the instance.
        settings: how long to rely on what.
        coordination: with others that share the store.
        wall_offset: how far the wall clock is ahead of `clock`.
        clock_error_seconds: None: no other host shares the store.
    """

    store: FaultyRepository = attrs.field(factory=FaultyRepository)
    upstream: Upstream = attrs.field(factory=Upstream)
    clock: Clock = attrs.field(factory=_make_clock)
    secret: bytes = SECRET
    settings: SnapshotSettings = SETTINGS
    coordination: Coordination = attrs.field(factory=Coordination)
    counted: Counter[str] = attrs.field(factory=Counter)
    wall_offset: float = 0.0
    clock_error_seconds: float | None = None
    archive: SealedRepository = attrs.field(init=False)
    snapshots: Snapshots = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.archive = SealedRepository(
            cast("SnapshotRepository", self.store),
            SnapshotCipher(self.secret),
            run_now,
            self.clock,
            self.get_wall_time,
            clock_error_seconds=self.clock_error_seconds,
        )
        self.snapshots = Snapshots(
            self.upstream.ask,
            self.archive,
            self.clock,
            self.coordination,
            self.settings,
            count=lambda event: self.counted.update([event.value]),
        )

    def get_wall_time(self) -> float:
        """As ``time.time``."""
        return self.clock.seconds() + self.wall_offset

    def restarted(self) -> Pinning:
        """The process that follows."""
        return attrs.evolve(self, counted=Counter())

    def may_continue(self, snapshot: Snapshot) -> bool:
        """True if a mount may continue without asking."""
        return self.clock.seconds() < self.snapshots.valid_until(snapshot)

    def newest(self, question: Question = KEY) -> Snapshot:
        """The newest snapshot, which must be there at once."""
        return outcome(self.snapshots.get(question))

    def newest_stored(self, question: Question = KEY) -> tuple[Snapshot, float] | None:
        """The newest snapshot in the archive, and when it was validated."""
        found = outcome(self.archive.load_newest(question.key, self.archive.seal_of(question)))
        return found and (found[0], found[1].validated_at)

    def config(self, snapshot: Snapshot) -> bytes:
        """The config in a snapshot, byte for byte."""
        found = outcome(self.snapshots.load(snapshot))
        assert found is not None
        return found.ignition

    @property
    def rounds(self) -> int:
        """How often assisted-service was asked."""
        return len(self.upstream.asked)


def lines_of_failure(pinning: Pinning, error: Exception, logged_failures: LoggedFailures) -> list[str]:
    """Ask once more, and return the lines that say that the last snapshot is served."""
    pinning.upstream.error = error
    with capturedLogs() as events:
        pinning.newest()
    logged_failures.flush(KeyError)
    lines = [formatEvent(event) for event in events if event["log_level"] is LogLevel.info]
    return [line for line in lines if "serving its last snapshot" in line]
