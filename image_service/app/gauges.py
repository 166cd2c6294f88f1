"""Gauges of the metrics: which part each is read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.catalog.catalog import Catalog
    from image_service.observability.metrics import Metrics
    from image_service.snapshots.boot_images import BootImages
    from image_service.transport.admission import Slots
    from image_service.transport.listeners import Listeners


def watch_parts(
    metrics: Metrics, catalog: Catalog, images: BootImages, slots: Slots, listeners: Listeners
) -> None:
    """Read the gauges from these parts whenever the metrics are rendered."""
    metrics.count_states("base_images", lambda: [status.state.value for status in catalog.statuses()])
    metrics.read_gauge("snapshot_held_bytes", lambda: images.held_bytes)
    metrics.read_gauge("snapshot_grace_active", lambda: images.in_grace)
    metrics.read_gauge("slots_limit", lambda: slots.limit)
    metrics.read_gauge("slots_taken", lambda: slots.acquired)
    metrics.read_gauge("slots_queue_length", lambda: slots.waiting)
    metrics.read_gauge("connections", lambda: listeners.connections)
    metrics.count_states("http_requests_inflight", listeners.handlers)
