from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import Coordination
from image_service.common.concurrency.negative_cache import REFUSED_SECONDS
from image_service.core.errors import (
    Conflict,
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamQueueFull,
    UpstreamTimeout,
)
from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    Ref,
)
from image_service.server.snapshots import resolver as resolver_module
from image_service.server.snapshots.resolver import TIMEOUT_SECONDS, Resolver
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from tests.server.snapshots.doubles import infra_env_of
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import Outcome, outcome, run_now
from tests.server.snapshots.pinning import SECRET, SETTINGS

if TYPE_CHECKING:
    from image_service.server.assisted.responses import InfraEnv

ID = "a6c0ff12-3456-4789-8abc-def012345678"
TTL, GRACE = SETTINGS.ttl_seconds, SETTINGS.grace_seconds
MOMENT = 0.01
OPEN = ImageRef(ID, None, None, None)
COMPLETE = ImageRef(ID, "4.20", "x86_64", Kind.FULL_ISO)
FAILING = [UpstreamError("down"), UpstreamTimeout("slow"), Unavailable("429")]


@attrs.define(eq=False)
class InfraEnvs:
    """assisted-service, as the resolver asks it.

    Args:
        reported: what every infra-env says about itself.
        error: raised instead.
        asked: how often.
        revalidations: for each call, whether an earlier answer was in use.
        gate: None, or what an answer waits for.
    """

    reported: InfraEnv = attrs.field(factory=lambda: infra_env_of((), "4.20"))
    error: Exception | None = None
    asked: list[tuple[str, Credentials | None]] = attrs.field(factory=list)
    revalidations: list[bool] = attrs.field(factory=list)
    gate: Deferred[None] | None = None

    async def fetch_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool
    ) -> InfraEnv:
        self.asked.append((infra_env_id, credentials))
        self.revalidations.append(is_revalidation)
        if self.gate is not None:
            await self.gate
        if self.error is not None:
            raise self.error
        return self.reported


@attrs.define(eq=False)
class Setting:
    """A resolver, and what it is made with."""

    infra_envs: InfraEnvs = attrs.field(factory=InfraEnvs)
    clock: Clock = attrs.field(factory=Clock)
    resolver: Resolver = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.resolver = Resolver(
            self.infra_envs.fetch_infra_env,
            SealedRepository(
                MemoryRepository(), SnapshotCipher(SECRET), run_now, self.clock, self.clock.seconds
            ),
            self.clock,
            Coordination(),
            SETTINGS,
        )

    def resolve(self, ref: Ref = OPEN, credentials: Credentials | None = None) -> Ref:
        return outcome(self.resolver.resolve(ref, credentials))

    @property
    def rounds(self) -> int:
        return len(self.infra_envs.asked)


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.mark.parametrize("ref", [COMPLETE, ArtifactRef(BootArtifact.ROOTFS, "4.20", "x86_64")])
def test_complete_reference_asks_nothing(setting: Setting, ref: Ref) -> None:
    assert setting.resolver.get_cached_ref(ref, None) is ref
    assert setting.resolve(ref) is ref
    assert setting.rounds == 0


@pytest.mark.parametrize(
    ("ref", "reported", "expected"),
    [
        (OPEN, infra_env_of((), "4.20"), ("4.20", "x86_64", Kind.FULL_ISO)),
        (
            OPEN,
            infra_env_of((), "4.20", Kind.MINIMAL_ISO, "aarch64"),
            ("4.20", "aarch64", Kind.MINIMAL_ISO),
        ),
        (
            ImageRef(ID, "4.19", "s390x", None),
            infra_env_of((), "4.20", Kind.MINIMAL_ISO, "aarch64"),
            ("4.19", "s390x", Kind.MINIMAL_ISO),
        ),
        (
            ImageRef(ID, None, None, Kind.DISCONNECTED_ISO),
            infra_env_of((), "4.20", Kind.MINIMAL_ISO),
            ("4.20", "x86_64", Kind.DISCONNECTED_ISO),
        ),
        (ImageRef(ID, "4.19", None, Kind.FULL_ISO), infra_env_of(), ("4.19", "x86_64", Kind.FULL_ISO)),
    ],
)
def test_request_precedes_infra_env_and_that_precedes_defaults(
    setting: Setting, ref: ImageRef, reported: InfraEnv, expected: tuple[str, str, Kind]
) -> None:
    setting.infra_envs.reported = reported
    assert setting.resolve(ref) == ImageRef(ID, *expected)


def test_missing_version_is_not_found(setting: Setting) -> None:
    setting.infra_envs.reported = infra_env_of()
    with pytest.raises(NotFound, match="version"):
        setting.resolve()
    setting.infra_envs.reported = infra_env_of((), "4.20")
    assert setting.resolve() == COMPLETE, "that is no absence to be remembered"


def test_answer_is_valid_for_the_ttl(setting: Setting) -> None:
    assert setting.resolver.get_cached_ref(OPEN, None) is None
    assert setting.resolve() == COMPLETE
    setting.clock.advance(TTL - MOMENT)
    assert setting.resolver.get_cached_ref(OPEN, None) == COMPLETE
    assert setting.resolve() == COMPLETE
    assert setting.rounds == 1
    setting.clock.advance(MOMENT)
    assert setting.resolver.get_cached_ref(OPEN, None) is None
    setting.infra_envs.reported = infra_env_of((), "4.21")
    assert setting.resolve() == attrs.evolve(COMPLETE, version="4.21")
    assert setting.rounds == 2


def test_credentials_and_references_do_not_share_answers(setting: Setting) -> None:
    one, two = (Credentials(CredentialScheme.API_KEY, secret) for secret in ("one", "two"))
    for credentials in (None, one, two):
        setting.resolve(OPEN, credentials)
    setting.resolve(ImageRef(ID, "4.19", None, None))
    setting.resolve(attrs.evolve(OPEN, infra_env_id=ID.replace("a", "b")))
    assert [asked[1] for asked in setting.infra_envs.asked] == [None, one, two, None, None]
    setting.infra_envs.error = Forbidden("not these")
    with pytest.raises(Forbidden):
        setting.resolve(OPEN, Credentials(CredentialScheme.IMAGE_TOKEN, "one"))
    assert setting.resolver.get_cached_ref(OPEN, one) == COMPLETE


def test_concurrent_requests_make_one_round(setting: Setting) -> None:
    gate: Deferred[None] = Deferred()
    setting.infra_envs.gate = gate
    asked = [Outcome(setting.resolver.resolve(OPEN, None)) for _ in range(200)]
    gate.callback(None)
    assert {asker.value for asker in asked} == {COMPLETE}
    assert setting.rounds == 1


# Where asking fails, or takes its time.


@pytest.mark.parametrize("error", FAILING)
def test_older_answer_is_used_for_the_grace_while_asking_fails(setting: Setting, error: Exception) -> None:
    setting.resolve()
    setting.clock.advance(TTL)
    setting.infra_envs.error = error
    for _ in range(10):
        assert setting.resolve() == COMPLETE
        setting.clock.advance(GRACE / 10)
    with pytest.raises(type(error)):
        setting.resolve()
    setting.infra_envs.error = None
    assert setting.resolve() == COMPLETE


def test_failed_question_is_retried_after_a_pause(setting: Setting) -> None:
    setting.resolve()
    setting.clock.advance(TTL)
    setting.infra_envs.error = UpstreamError("no")
    for _ in range(10):
        assert setting.resolve() == COMPLETE
        assert setting.resolver.get_cached_ref(OPEN, None) == COMPLETE
        assert setting.rounds == 2
        setting.clock.advance(RETRY_SECONDS / 10)
    setting.resolve()
    assert setting.rounds == 3


@pytest.mark.parametrize("error", FAILING)
def test_failure_without_an_older_answer_is_raised(setting: Setting, error: Exception) -> None:
    setting.infra_envs.error = error
    for _ in range(3):
        with pytest.raises(type(error)):
            setting.resolve()
    assert setting.rounds == 3


def test_missing_slot_starts_no_grace(setting: Setting) -> None:
    setting.resolve()
    setting.clock.advance(TTL)
    setting.infra_envs.error = UpstreamQueueFull("no slot")
    with pytest.raises(UpstreamQueueFull):
        setting.resolve()
    setting.infra_envs.error = None
    assert setting.resolve() == COMPLETE, "without a pause"
    assert setting.infra_envs.revalidations == [False, True, True]


def test_older_answer_is_used_after_the_timeout(setting: Setting) -> None:
    setting.resolve()
    setting.clock.advance(TTL)
    gate: Deferred[None] = Deferred()
    setting.infra_envs.gate = gate
    setting.infra_envs.reported = infra_env_of((), "4.21")
    asked = Outcome(setting.resolver.resolve(OPEN, None))
    setting.clock.advance(TIMEOUT_SECONDS - MOMENT)
    assert not asked.has_fired
    setting.clock.advance(MOMENT)
    assert asked.value == COMPLETE
    gate.callback(None)
    assert setting.resolver.get_cached_ref(OPEN, None) == attrs.evolve(COMPLETE, version="4.21")
    assert setting.rounds == 2
    assert setting.clock.getDelayedCalls() == []


def test_request_without_an_older_answer_waits(setting: Setting) -> None:
    gate: Deferred[None] = Deferred()
    setting.infra_envs.gate = gate
    asked = Outcome(setting.resolver.resolve(OPEN, None))
    setting.clock.advance(10 * TIMEOUT_SECONDS)
    assert not asked.has_fired
    gate.callback(None)
    assert asked.value == COMPLETE


# Refusals.


@pytest.mark.parametrize("error", [Unauthorized("401"), Forbidden("403"), NotFound("404"), Conflict("409")])
def test_refusal_removes_the_older_answer(setting: Setting, error: Exception) -> None:
    setting.resolve()
    setting.clock.advance(TTL)
    setting.infra_envs.error = error
    with pytest.raises(type(error)):
        setting.resolve()
    setting.infra_envs.error = UpstreamError("no")
    setting.clock.advance(REFUSED_SECONDS)
    with pytest.raises(UpstreamError):
        setting.resolve()


@pytest.mark.parametrize("error", [Unauthorized("401"), Forbidden("403"), NotFound("404")])
def test_refusal_is_cached_for_a_while_whatever_version_is_requested(
    setting: Setting, error: ImageServiceError
) -> None:
    setting.infra_envs.error = error
    for number in range(100):
        with pytest.raises(type(error), match=error.detail):
            setting.resolve(attrs.evolve(OPEN, version=f"4.{number}"))
    assert setting.rounds == 1
    setting.infra_envs.error = None
    other = Credentials(CredentialScheme.API_KEY, "other")
    assert setting.resolve(OPEN, other) == COMPLETE
    with pytest.raises(type(error)):
        setting.resolve()
    setting.clock.advance(REFUSED_SECONDS)
    assert setting.resolve() == COMPLETE


# Bounds.


def test_oldest_answer_is_evicted(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "MAX_KNOWN", 2)
    refs = [attrs.evolve(OPEN, infra_env_id=ID.replace("a", letter)) for letter in "bcd"]
    setting.resolve(refs[0])
    setting.resolve(refs[1])
    setting.clock.advance(TTL)
    setting.resolve(refs[0])
    setting.resolve(refs[2])
    assert [setting.resolver.get_cached_ref(ref, None) is not None for ref in refs] == [True, False, True]


def test_too_many_first_requests_are_refused_with_retry_after(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver_module, "MAX_ASKING", 2)
    setting.__attrs_post_init__()
    setting.infra_envs.gate = Deferred()
    for letter in "bc":
        Outcome(setting.resolver.resolve(attrs.evolve(OPEN, infra_env_id=ID.replace("a", letter)), None))
    with pytest.raises(Unavailable):
        setting.resolve()
    assert setting.rounds == 2
