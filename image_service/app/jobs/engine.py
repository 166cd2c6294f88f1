"""Starts the job engine, or connects to one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ConfigurationError, MissingDependency
from image_service.jobs.engine.connection import DEFAULT_PORT, EngineConnection
from image_service.jobs.engine.engine_child import EngineChild, find_program
from image_service.jobs.engine.temporal_engine import JobLimits, TemporalEngine
from image_service.settings.parsers import Address

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.settings.jobs.role import JobsRoleSettings

ENGINE_DIRECTORY = "engine"
"""Of the child's files, in ``DATA_DIR``."""


@attrs.frozen
class StartedEngine:
    """The engine, and this process's connection to it, which is not started yet.

    Args:
        child: None: the engine is another service.
    """

    engine: TemporalEngine
    connection: EngineConnection
    child: EngineChild | None

    @property
    def fault(self) -> str:
        """Why composes wait; "": the engine answers."""
        if self.connection.is_available:
            return ""
        fault = self.child.process.fault if self.child else ""
        ended = f": it has ended: {fault}" if fault else ""
        return f"the job engine does not answer{ended}; composes wait"


async def start_engine(parts: PartsStack, settings: JobsRoleSettings) -> StartedEngine:
    """Start the engine as a child process, unless ``TEMPORAL_ADDRESS`` is set.

    Raises:
        ConfigurationError: its program is not installed, or its directory cannot be used.
        EngineUnavailable: the child of an earlier start does not end.
    """
    child = None
    if settings.engine.address is None:
        child = _make_child(parts, settings)
        await child.start()
        parts.push_async_callback(child.stop)
        address = child.address
    else:
        given = settings.engine.address
        address = Address(given.host, given.port or DEFAULT_PORT).netloc
    connection = EngineConnection(address, settings.engine, asyncio.get_event_loop())
    limits = JobLimits(settings.jobs.heartbeat_seconds, settings.jobs.job_seconds)
    return StartedEngine(TemporalEngine(connection, limits), connection, child)


def _make_child(parts: PartsStack, settings: JobsRoleSettings) -> EngineChild:
    try:
        program = find_program()
    except MissingDependency as error:
        raise ConfigurationError(error.detail) from None
    return EngineChild(parts.reactor, settings.storage.data_dir / ENGINE_DIRECTORY, program)
