"""What infra-envs say about themselves, asked by several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.assisted.answers import InfraEnv
from image_service.concurrency.coordination import MAX_POLL_SECONDS, SIZE_BYTES, SharedMemoryCoordination
from image_service.errors import NotFound, SnapshotUnreadable
from image_service.images.reference import Credentials, CredentialScheme, Kind
from image_service.snapshots.archive import Archive
from image_service.snapshots.encryption import SnapshotCipher
from image_service.snapshots.infra_env_codec import decode_infra_env, encode_infra_env
from image_service.snapshots.shared_infra_envs import SharedInfraEnvs
from tests.snapshots.pinning import ID, SECRET, FaultyStore, Outcome, at_once, outcome
from tests.snapshots.stores import store_in

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.snapshots.repository import SnapshotStore

TTL = 60.0
MOMENT = 0.01
SAID = InfraEnv((), "4.20", Kind.MINIMAL_ISO, "aarch64")
ONE, OTHER = (Credentials(CredentialScheme.API_KEY, secret) for secret in ("one", "other"))


@attrs.define(eq=False)
class Upstream:
    """Says what it is told to say, when it is told to."""

    said: InfraEnv = SAID
    error: Exception | None = None
    gate: Deferred[None] | None = None
    asked: int = 0

    async def infra_env(self, _: str, __: Credentials | None) -> InfraEnv:
        self.asked += 1
        if self.gate is not None:
            await self.gate
        if self.error is not None:
            raise self.error
        return self.said


@attrs.define(eq=False)
class Setting:
    """Two processes that share a store and turns."""

    directory: Path
    upstream: Upstream = attrs.field(factory=Upstream)
    clock: Clock = attrs.field(factory=Clock)
    memory: memoryview = attrs.field(factory=lambda: memoryview(bytearray(SIZE_BYTES)))
    store: FaultyStore = attrs.field(init=False)
    processes: list[SharedInfraEnvs] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.store = FaultyStore(store_in(self.directory))
        self.processes = [self.process(), self.process()]

    def process(self) -> SharedInfraEnvs:
        archive = Archive(cast("SnapshotStore", self.store), SnapshotCipher(SECRET), at_once)
        coordination = SharedMemoryCoordination(self.memory, self.directory / "locks", self.clock)
        return SharedInfraEnvs(self.upstream, archive, self.clock, TTL, coordination)

    def say(self, number: int, credentials: Credentials | None = None) -> InfraEnv:
        return outcome(self.processes[number].infra_env(ID, credentials))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_all_are_told_what_one_was_told_for_the_ttl(setting: Setting) -> None:
    for rounds in range(1, 4):
        at = setting.clock.seconds()
        assert setting.say(0) == attrs.evolve(SAID, said_at=at)
        setting.clock.advance(TTL - MOMENT)
        assert setting.say(1) == attrs.evolve(SAID, said_at=at)
        assert setting.upstream.asked == rounds
        setting.clock.advance(MOMENT)


def test_a_changed_answer_takes_the_place_of_the_one_before(setting: Setting) -> None:
    for version in ("4.20", "4.21", "4.21", "4.20"):
        setting.upstream.said = attrs.evolve(SAID, openshift_version=version)
        assert {setting.say(number).openshift_version for number in (0, 1)} == {version}
        setting.clock.advance(TTL)
    assert setting.store.called["add"] == 3


def test_those_who_ask_at_once_make_one_round(setting: Setting) -> None:
    setting.upstream.gate = Deferred()
    asked = [Outcome(process.infra_env(ID, None)) for process in setting.processes]
    setting.clock.advance(MAX_POLL_SECONDS)
    assert not any(one.is_there for one in asked)
    setting.upstream.gate.callback(None)
    setting.clock.advance(MAX_POLL_SECONDS)
    assert asked[0].value == asked[1].value
    assert setting.upstream.asked == 1


def test_who_fails_gives_the_turn_away(setting: Setting) -> None:
    setting.upstream.error = NotFound("404")
    for number in (0, 1):
        with pytest.raises(NotFound):
            setting.say(number)
    assert setting.upstream.asked == 2


def test_credentials_share_nothing(setting: Setting) -> None:
    for number, credentials in enumerate((None, ONE, OTHER), 1):
        setting.say(0, credentials)
        assert setting.upstream.asked == number


@pytest.mark.parametrize("broken", ["latest", "load", "add"])
def test_a_store_that_fails_costs_rounds(setting: Setting, broken: str) -> None:
    setting.store.broken = {broken}
    assert setting.say(0) == setting.say(1) == attrs.evolve(SAID, said_at=0.0)
    assert setting.upstream.asked == 2


@pytest.mark.parametrize("said", [SAID, InfraEnv((), None, None, None)])
def test_what_is_kept_is_what_was_said(said: InfraEnv) -> None:
    assert decode_infra_env(encode_infra_env(said), 7.0) == attrs.evolve(said, said_at=7.0)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"7", b'["4.20", "odd", null]'])
def test_what_another_release_has_written_is_not_read(payload: bytes) -> None:
    with pytest.raises(SnapshotUnreadable):
        decode_infra_env(payload, 0.0)
