"""References that several processes complete: what one of them is answered serves all."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.common.concurrency.coordination import MAX_POLL_SECONDS
from image_service.core.errors import NotFound
from image_service.core.images.reference import Credentials, CredentialScheme, ImageRef, Kind
from image_service.server.assisted.responses import InfraEnv
from image_service.server.snapshots.resolver import Resolver
from image_service.server.snapshots.storage.encryption import SnapshotCipher
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from tests.server.snapshots.outcomes import Outcome, outcome, run_now
from tests.server.snapshots.pinning import ID, SECRET, SETTINGS, FaultyRepository

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.core.images.reference import Ref
    from image_service.server.snapshots.storage.repository import SnapshotRepository
    from image_service.server.snapshots.storage.sql_repository import SqlRepository
    from tests.server.snapshots.conftest import Coordinating

TTL = 60.0
MOMENT = 0.01
OPEN = ImageRef(ID, None, None, None)
INFRA_ENV = InfraEnv((), "4.20", Kind.MINIMAL_ISO, "aarch64")
COMPLETE = ImageRef(ID, "4.20", "aarch64", Kind.MINIMAL_ISO)
ONE, OTHER = (Credentials(CredentialScheme.API_KEY, secret) for secret in ("one", "other"))


@attrs.define(eq=False)
class Upstream:
    """assisted-service; answers once ``gate`` has fired, if there is one."""

    infra_env_: InfraEnv = INFRA_ENV
    error: Exception | None = None
    gate: Deferred[None] | None = None
    asked: int = 0
    revalidations: list[bool] = attrs.field(factory=list)

    async def fetch_infra_env(self, _: str, __: Credentials | None, *, is_revalidation: bool) -> InfraEnv:
        self.asked += 1
        self.revalidations.append(is_revalidation)
        if self.gate is not None:
            await self.gate
        if self.error is not None:
            raise self.error
        return self.infra_env_


@attrs.define(eq=False)
class Setting:
    """Two processes that share a repository."""

    coordinate: Callable[[IReactorTime], Coordinating]
    repository: SqlRepository
    upstream: Upstream = attrs.field(factory=Upstream)
    clock: Clock = attrs.field(factory=Clock)
    store: FaultyRepository = attrs.field(init=False)
    processes: list[Resolver] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.store = FaultyRepository(self.repository)
        self.start()

    def start(self) -> None:
        """Start two processes."""
        self.processes = [self.process(each) for each in self.coordinate(self.clock).processes[:2]]

    def process(self, coordination: Coordination) -> Resolver:
        archive = SealedRepository(
            cast("SnapshotRepository", self.store),
            SnapshotCipher(SECRET),
            run_now,
            self.clock,
            self.clock.seconds,
        )
        return Resolver(
            self.upstream.fetch_infra_env,
            archive,
            self.clock,
            coordination,
            attrs.evolve(SETTINGS, grace_seconds=0),
        )

    def resolve(self, number: int, credentials: Credentials | None = None) -> Ref:
        return outcome(self.processes[number].resolve(OPEN, credentials))


@pytest.fixture
def setting(coordinate: Callable[[IReactorTime], Coordinating], repository: SqlRepository) -> Setting:
    return Setting(coordinate, repository)


def test_one_answer_serves_all_processes_for_the_ttl(setting: Setting) -> None:
    for rounds in range(1, 4):
        assert setting.resolve(0) == COMPLETE
        setting.clock.advance(TTL - MOMENT)
        assert setting.resolve(1) == COMPLETE
        assert setting.upstream.asked == rounds
        assert setting.processes[1].get_cached_ref(OPEN, None) == COMPLETE
        setting.clock.advance(MOMENT)
        assert [process.get_cached_ref(OPEN, None) for process in setting.processes] == [None, None]


def test_stored_answer_serves_a_restarted_service_for_the_rest_of_the_ttl(setting: Setting) -> None:
    assert setting.resolve(0) == COMPLETE
    setting.start()
    setting.clock.advance(TTL - MOMENT)
    assert setting.resolve(0) == COMPLETE
    assert setting.upstream.asked == 1


def test_changed_answer_replaces_the_stored_one(setting: Setting) -> None:
    for version in ("4.20", "4.21", "4.21", "4.20"):
        setting.upstream.infra_env_ = attrs.evolve(INFRA_ENV, openshift_version=version)
        for number in (0, 1):
            assert setting.resolve(number) == attrs.evolve(COMPLETE, version=version)
        setting.clock.advance(TTL)
    assert setting.store.called["add"] == 3


def test_processes_that_ask_together_make_one_round(setting: Setting) -> None:
    setting.upstream.gate = Deferred()
    asked = [Outcome(process.resolve(OPEN, None)) for process in setting.processes]
    setting.clock.advance(MAX_POLL_SECONDS)
    assert not any(one.has_fired for one in asked)
    setting.upstream.gate.callback(None)
    setting.clock.advance(MAX_POLL_SECONDS)
    assert asked[0].value == asked[1].value
    assert setting.upstream.asked == 1


def test_lock_is_released_after_a_failure(setting: Setting) -> None:
    setting.upstream.error = NotFound("404")
    for number in (0, 1):
        with pytest.raises(NotFound):
            setting.resolve(number)
    assert setting.upstream.asked == 2


def test_credentials_do_not_share_answers(setting: Setting) -> None:
    for number, credentials in enumerate((None, ONE, OTHER), 1):
        setting.resolve(0, credentials)
        setting.resolve(1, credentials)
        assert setting.upstream.asked == number


@pytest.mark.parametrize("broken", ["find_newest", "load", "add"])
def test_failing_repository_costs_only_extra_upstream_calls(setting: Setting, broken: str) -> None:
    setting.store.broken = {broken}
    assert setting.resolve(0) == setting.resolve(1) == COMPLETE
    assert setting.upstream.asked == 2
