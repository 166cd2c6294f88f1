"""A simulated assisted-service: infra-envs that change and are refused, calls that fail or hang."""

from __future__ import annotations

import base64
import enum
import json
from typing import TYPE_CHECKING

import attrs
from twisted.internet.task import deferLater

from image_service.core.errors import (
    IgnitionInvalid,
    Unauthorized,
    UpstreamError,
    UpstreamQueueFull,
    UpstreamTimeout,
)
from image_service.core.images.reference import Kind
from image_service.server.assisted.responses import IgnitionConfig, InfraEnv

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from image_service.core.errors import ImageServiceError
    from image_service.core.images.reference import Credentials
    from tests.simulation.events import Events, Machine
    from tests.simulation.oracle import Oracle

TIMEOUT_SECONDS = 30.0
"""After which the product gives a call up."""


class Mood(enum.Enum):
    """How assisted-service behaves."""

    WELL = "well"
    SLOW = "slow"
    HANGING = "hanging"
    FAILING = "failing"
    FULL = "full"  # the product has no call slot for it
    INVALID = "invalid"  # it answers with what is not an Ignition config


@attrs.define(eq=False)
class InfraEnvState:
    """An infra-env, and the token that is good for it."""

    id: str
    token: str
    text: int = 1
    refusal: type[ImageServiceError] | None = None


@attrs.define(eq=False)
class AssistedState:
    """The service, which all replicas call."""

    events: Events
    oracle: Oracle
    infra_envs: dict[str, InfraEnvState]
    mood: Mood = Mood.WELL
    until: float = 0.0
    calm_at: float = 0.0
    """When all calls that hang are over."""
    answers: int = 0

    @property
    def present_mood(self) -> Mood:
        """How it behaves now."""
        return self.mood if self.events.now < self.until else Mood.WELL


@attrs.define(eq=False)
class SimulatedAssisted:
    """What one replica calls. As `AssistedApi`."""

    state: AssistedState
    machine: Machine

    async def fetch_ignition(
        self,
        infra_env_id: str,
        discovery_iso_type: Kind | None,
        credentials: Credentials | None,
        *,
        is_revalidation: bool = False,
    ) -> IgnitionConfig:
        """As `AssistedService.fetch_ignition`."""
        del discovery_iso_type, is_revalidation
        infra_env, state = await self._ask("ignition", infra_env_id, credentials), self.state
        state.answers += 1
        number = base64.urlsafe_b64encode(b"%06d" % state.answers).decode()
        config = {
            "ignition": {"version": "3.2.0"},
            "text": infra_env.text,
            "infra_env": infra_env.id,
            "for": infra_env.token,
            "token": f"eyJhbGciOiJFUzI1NiJ9.eyJ{number}.c2ln",
        }
        content = json.dumps(config).encode()
        state.oracle.record_answer(infra_env.id, infra_env.token, infra_env.text, content)
        await self._delay()
        return IgnitionConfig(content, None)

    async def fetch_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> InfraEnv:
        """As `AssistedService.fetch_infra_env`."""
        del is_revalidation
        await self._ask("infra-env", infra_env_id, credentials)
        await self._delay()
        return InfraEnv((), "4.20", Kind.FULL_ISO, "x86_64")

    async def fetch_ramdisk(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> bytes | None:
        """As `AssistedService.fetch_ramdisk`."""
        del infra_env_id, credentials, is_revalidation  # there is no answer
        raise AssertionError("the service asked for a ramdisk, which full ISOs do not have")

    async def _ask(self, question: str, infra_env_id: str, credentials: Credentials | None) -> InfraEnvState:
        """Wait until the answer is decided, and return the infra-env that it is about."""
        token = "" if credentials is None else credentials.secret
        asked = (question, infra_env_id, token)
        state, oracle = self.state, self.state.oracle
        if state.present_mood is Mood.FULL:
            await deferLater(self.machine, 1.0)
            raise UpstreamQueueFull("no call slot", retry_after_seconds=1)
        oracle.begin_call(self.machine, asked)
        try:
            await self._delay()
            if state.present_mood is Mood.HANGING:
                await deferLater(self.machine, TIMEOUT_SECONDS)
                raise UpstreamTimeout("hangs")
            if state.present_mood is Mood.FAILING:
                raise UpstreamError("502")
            infra_env = state.infra_envs[infra_env_id]
            if infra_env.token != token:
                raise Unauthorized("401")
            if infra_env.refusal is not None:
                raise infra_env.refusal("refused")
            if state.present_mood is Mood.INVALID and question == "ignition":
                raise IgnitionInvalid("422")
            return infra_env
        finally:
            oracle.end_call(self.machine, asked)

    def _delay(self) -> Deferred[None]:
        chance = self.state.events.chance
        is_slow = self.state.present_mood is Mood.SLOW
        return deferLater(self.machine, chance.uniform(0.3, 6.0) if is_slow else chance.uniform(0.002, 0.1))
