"""Connects assisted-service, or its stand-in, and shows its calls in the metrics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.server.assisted.check import check_upstream
from image_service.server.assisted.client import AssistedService
from image_service.server.transport.sending.observer import RefusalReason
from image_service.settings.proxies import NO_PROXIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.python.failure import Failure

    from image_service.app.standalone_mode import StandIn
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.core.errors import ImageServiceError
    from image_service.server.observability.metrics import Metrics
    from image_service.settings.settings import Settings

_log = Logger()


def connect_assisted_service(  # noqa: PLR0913 - parts of the service
    parts: PartsStack,
    settings: Settings,
    stand_in: StandIn | None,
    metrics: Metrics,
    *,
    record_name: Callable[[str, str], None],
    is_leader: bool = True,
) -> AssistedService:
    """Return the client of assisted-service, or of the stand-in if there is one; the parts stack closes it.

    The leader also tries to reach assisted-service once, beside the start; its calls are not in the metrics.
    """
    upstream = settings.upstream
    assisted = AssistedService(
        parts.reactor,
        stand_in.base_url if stand_in else upstream.url,
        ca_file=stand_in.ca_file if stand_in else upstream.ca_file,
        insecure=upstream.insecure and stand_in is None,
        proxies=NO_PROXIES if stand_in else settings.proxies,
        upstream_timeout_seconds=upstream.timeout_seconds,
        concurrency=upstream.concurrency,
        ignition_bytes=upstream.ignition_bytes,
        record=metrics.record_upstream_call,
        record_refusal=partial(metrics.record_refusal, RefusalReason.UPSTREAM_QUEUE),
        record_name=record_name,
    )
    if is_leader and stand_in is None:
        _check_upstream(parts, settings, assisted.health.record)
    parts.push_async_callback(assisted.close)
    metrics.count_states("upstream_calls_running", assisted.slots.running)
    metrics.count_states("upstream_calls_waiting", assisted.slots.waiting)
    return assisted


def _check_upstream(
    parts: PartsStack, settings: Settings, record: Callable[[ImageServiceError | None], None]
) -> None:
    """Record the result, and log a warning if assisted-service cannot be reached; nothing waits for this."""
    is_stopping = False

    def report(fault: str | None) -> None:
        if not (fault is None or is_stopping):
            _log.warn("cannot reach assisted-service: {fault}", fault=fault)

    def report_error(failure: Failure) -> None:
        if not is_stopping:  # the error of a canceled request depends on how far it was
            _log.failure("unexpected error in a test request", failure=failure)

    checking = Deferred.fromCoroutine(
        check_upstream(parts.reactor, settings.upstream, settings.proxies, record)
    )
    reported = checking.addCallbacks(report, report_error)

    async def stop() -> None:
        nonlocal is_stopping
        is_stopping = True
        reported.cancel()
        await reported

    parts.push_async_callback(stop)
