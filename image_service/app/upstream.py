"""Connects assisted-service, or its stand-in, and shows its calls in the metrics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.assisted.client import AssistedService
from image_service.transport.observer import RefusalReason

if TYPE_CHECKING:
    from image_service.app.standalone_mode import StandIn
    from image_service.concurrency.parts import PartsStack
    from image_service.observability.metrics import Metrics
    from image_service.settings.upstream import UpstreamSettings


def connect_assisted_service(
    parts: PartsStack, settings: UpstreamSettings, stand_in: StandIn | None, metrics: Metrics
) -> AssistedService:
    """Return the client of the stand-in, if there is one; the parts stack closes it."""
    assisted = AssistedService(
        parts.reactor,
        stand_in.base_url if stand_in else settings.url,
        ca_file=stand_in.ca_file if stand_in else settings.ca_file,
        insecure=settings.insecure,
        upstream_timeout_seconds=settings.timeout_seconds,
        concurrency=settings.concurrency,
        record=metrics.record_upstream_call,
        record_refusal=partial(metrics.record_refusal, RefusalReason.UPSTREAM_QUEUE),
    )
    parts.push_async_callback(assisted.close)
    metrics.count_states("upstream_calls_running", assisted.slots.running)
    metrics.count_states("upstream_calls_waiting", assisted.slots.waiting)
    return assisted
