from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from image_service.jobs.engine.temporal_engine import JobLimits, TemporalEngine


def test_call_of_a_client_that_has_left_ends_as_twisted_expects() -> None:
    """Twisted's resources ignore its own CancelledError; that of asyncio is another class."""
    loop = asyncio.new_event_loop()

    async def wait(*_: object, **__: object) -> None:
        await asyncio.sleep(1000)

    service = SimpleNamespace(record_activity_task_heartbeat=wait)
    client = SimpleNamespace(workflow_service=service, namespace="", identity="")
    connection: Any = SimpleNamespace(loop=loop, client=client)
    limits: JobLimits = SimpleNamespace()  # type: ignore[assignment]
    outcome: list[Any] = []
    calling = Deferred.fromCoroutine(TemporalEngine(connection, limits).heartbeat(b"token"))
    calling.addBoth(outcome.append)
    loop.run_until_complete(asyncio.sleep(0))
    calling.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    (failure,) = outcome
    assert isinstance(failure, Failure)
    assert failure.check(CancelledError)
