"""The connection of a process to the engine, and its part in carrying out plans."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    RegisterNamespaceRequest,
)
from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from twisted.internet.defer import Deferred
from twisted.logger import Logger, LogLevel

from image_service import __version__
from image_service.common.concurrency.backoff import Backoff
from image_service.core.errors import EngineUnavailable
from image_service.jobs.engine.engine import SERVER_QUEUE
from image_service.jobs.engine.plan_activities import BEAT_SECONDS, PlanActivities
from image_service.jobs.engine.run_plan import RunPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from image_service.jobs.engine.engine import PlanActions
    from image_service.settings.jobs.engine import EngineSettings

_log = Logger()

DEFAULT_PORT = 7233
RETENTION = timedelta(days=14)
_CHECK_SECONDS = 5.0
_CALL_TIMEOUT = timedelta(seconds=5)
_SHUTDOWN_SECONDS = 5.0
_START_SECONDS = 30.0  # of an engine that starts beside this process; longer silence is a fault
_MAX_ACTIVITIES = 500  # most wait for a base that another one fetches
_MAX_CACHED_PLANS = 100  # the SDK replays other plans from the engine's history when they go on
_SYSTEM_MESSAGE = re.compile(r'message: "([^"]+)"')
_BACKOFF = Backoff(min_seconds=0.5, max_seconds=10.0)


class EngineConnection:
    """Connects to the engine, again and again until it answers, and runs plans and actions of this service.

    Args:
        address: HOST:PORT.
    """

    def __init__(self, address: str, settings: EngineSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._settings = settings
        self.loop = loop
        self._client: Client | None = None
        self.is_available = False
        """True if the engine has answered to the latest check."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def client(self) -> Client:
        """The client.

        Raises:
            EngineUnavailable: there was no connection yet.
        """
        if self._client is None:
            raise EngineUnavailable("the job engine does not answer yet", retry_after_seconds=5)
        return self._client

    def start(self, actions: PlanActions) -> None:
        """Connect, and carry out plans by these actions."""
        work = self._work(PlanActivities(actions))
        self._tasks = [self.loop.create_task(work), self.loop.create_task(self._check())]

    async def stop(self) -> None:
        """End this process's part; another one repeats its actions, or this one after the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            ended = asyncio.wait(self._tasks, timeout=_SHUTDOWN_SECONDS)
            await Deferred.fromFuture(self.loop.create_task(ended))

    async def _work(self, activities: PlanActivities) -> None:
        """Connect and work until it is cancelled."""
        failures, patient_until = 0, self.loop.time() + _START_SECONDS
        while True:
            try:
                client = await self._connect()
                await self._ensure_namespace(client)
                self._client, self.is_available, failures, patient_until = client, True, 0, 0.0
                _log.info("the job engine answers")
                await self._worker(client, activities).run()
            except Exception as error:  # noqa: BLE001 - the SDK raises RuntimeError, RPCError and others
                failures += 1
                if self.loop.time() >= patient_until:
                    _log.warn("the job engine cannot be used: {reason}", reason=_reason(error))
                elif failures == 1:
                    _log.info("waiting for the job engine, {seconds:.0f} s at most", seconds=_START_SECONDS)
            await asyncio.sleep(_BACKOFF.delay_seconds(failures or 1))

    async def _connect(self) -> Client:
        settings = self._settings
        return await Client.connect(
            self._address,
            namespace=settings.namespace,
            tls=_tls(settings),
            runtime=_runtime(),
        )

    async def _ensure_namespace(self, client: Client) -> None:
        """Make the namespace if it is missing.

        Raises:
            EngineUnavailable: it cannot be used yet, which takes the engine some seconds, or not at all.
        """
        service, namespace = client.workflow_service, self._settings.namespace
        description = DescribeNamespaceRequest(namespace=namespace)
        request = RegisterNamespaceRequest(namespace=namespace)
        request.workflow_execution_retention_period.FromTimedelta(RETENTION)
        queue = DescribeTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=SERVER_QUEUE))
        if not await _is_found(service.describe_namespace(description, timeout=_CALL_TIMEOUT)):
            with suppress(RPCError):  # another replica makes it too, or it is not permitted
                await service.register_namespace(request, timeout=_CALL_TIMEOUT)
        if not await _is_found(service.describe_task_queue(queue, timeout=_CALL_TIMEOUT)):
            raise EngineUnavailable(f"its namespace {namespace} cannot be used yet")

    def _worker(self, client: Client, activities: PlanActivities) -> Worker:
        return Worker(
            client,
            task_queue=SERVER_QUEUE,
            workflows=[RunPlan],
            activities=activities.all,
            workflow_runner=UnsandboxedWorkflowRunner(),  # `RunPlan` is ours, and deterministic
            max_concurrent_activities=_MAX_ACTIVITIES,
            max_cached_workflows=_MAX_CACHED_PLANS,
            max_heartbeat_throttle_interval=timedelta(seconds=BEAT_SECONDS),
            build_id=__version__,  # else the SDK reads the code of all modules again, and the reactor waits
        )

    async def _check(self) -> None:
        """Check the engine at intervals; it may have lost its database meanwhile."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS if self.is_available else _BACKOFF.min_seconds)
            if self._client is None:
                continue
            was_available = self.is_available
            try:
                await self._ensure_namespace(self._client)
            except (RPCError, EngineUnavailable) as error:
                self.is_available = False
                if was_available:
                    _log.warn("the job engine does not answer: {reason}", reason=str(error))
            else:
                self.is_available = True
                if not was_available:
                    _log.info("the job engine answers again")


def _reason(error: Exception) -> str:
    """Return the message of an error; of one of the SDK's connections the system's, which is in its text."""
    text = str(error)
    found = _SYSTEM_MESSAGE.search(text)
    return f"no connection: {found[1]}" if found else text


async def _is_found(call: Awaitable[object]) -> bool:
    """Await a call; False: the engine does not know its object."""
    try:
        await call
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


def _tls(settings: EngineSettings) -> TLSConfig | None:
    """Read the files of TLS, which may have been replaced since the last connection."""
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    if not (settings.tls or any(files)):
        return None
    authorities, certificate, key = (path.read_bytes() if path else None for path in files)
    return TLSConfig(server_root_ca_cert=authorities, client_cert=certificate, client_private_key=key)


class _ForwardingHandler(logging.Handler):
    """Passes the SDK's log on to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record at its level, without a traceback."""
        level = LogLevel.error if record.levelno >= logging.ERROR else LogLevel.warn
        _log.emit(level, "{name}: {text}", name=record.name, text=record.getMessage())


def _runtime() -> Runtime:
    """Return the SDK's runtime, whose log goes through ours."""
    logger = logging.getLogger("temporalio")
    if not logger.handlers:
        logger.addHandler(_ForwardingHandler(logging.WARNING))
        logger.propagate = False
        forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
        levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(levels, forwarding))))
    return Runtime.default()
