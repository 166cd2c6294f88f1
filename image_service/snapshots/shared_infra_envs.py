"""What infra-envs say about themselves, asked once for all processes that share the store.

An answer is good for the TTL from when it was given, whichever process it was given to: so all learn of a
changed one at the same moment. A store that fails costs rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.assisted.answers import InfraEnv
    from image_service.concurrency.coordination import Coordination
    from image_service.images.reference import Credentials


class InfraEnvs(Protocol):
    """Who knows infra-envs."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """What one says about itself."""


class Memory(Protocol):
    """Where answers are kept for other processes."""

    def key_of_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> bytes:
        """What stands for an infra-env and who asks it."""

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv | None:
        """What one has said last."""

    async def keep_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, said: InfraEnv, at: float
    ) -> None:
        """Keep what one says."""


class SharedInfraEnvs:
    """Asks infra-envs, unless another process has asked lately.

    Args:
        infra_envs: who is asked.
        memory: shared with the other processes.
        clock: tells the time, in seconds since the epoch.
        ttl_seconds: how long an answer is good.
        coordination: with those processes.
    """

    def __init__(
        self,
        infra_envs: InfraEnvs,
        memory: Memory,
        clock: IReactorTime,
        ttl_seconds: float,
        coordination: Coordination,
    ) -> None:
        self._infra_envs = infra_envs
        self._memory = memory
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._coordination = coordination

    async def infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Give what an infra-env says about itself, without its kernel arguments where another was told.

        Args:
            infra_env_id: which.
            credentials: who asks.

        Returns:
            that, and when it was said.

        Raises:
            ImageServiceError: it cannot be had.
        """
        key = self._memory.key_of_infra_env(infra_env_id, credentials)
        async with self._coordination.lock(key):
            if self._coordination.version(key):
                kept = await self._memory.infra_env(infra_env_id, credentials)
                now = self._clock.seconds()
                if kept is not None and kept.said_at is not None and now < kept.said_at + self._ttl_seconds:
                    return attrs.evolve(kept, said_at=min(kept.said_at, now))
            said = await self._infra_envs.infra_env(infra_env_id, credentials)
            at = self._clock.seconds()

            async def save() -> bool:
                await self._memory.keep_infra_env(infra_env_id, credentials, said, at)
                self._coordination.bump(key)
                return True

            await self._coordination.publish(save)
            return attrs.evolve(said, said_at=at)
