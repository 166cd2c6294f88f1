"""The gauges of the service: the metrics page reads them from its parts when it is rendered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.registry.references import is_registry_url, parse_registry_url
from image_service.core.errors import describe_os_error
from image_service.server.transport.tls.certificate import CHECK_SECONDS, ExpiryWarnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.process_parts import InThread, PartsStack
    from image_service.common.files.disk_quota import DiskQuota, DiskUsage
    from image_service.server.catalog.catalog import Catalog
    from image_service.server.catalog.lifecycle.status import ImageStatus
    from image_service.server.observability.metrics import Metrics
    from image_service.server.serving.request_handler import ImageRequestHandler
    from image_service.server.snapshots.image_finder import ImageFinder
    from image_service.server.streams.streams import Streams
    from image_service.server.transport.admission.slots import Slots
    from image_service.server.transport.listeners import Listeners
    from image_service.server.transport.tls.certificate import ServerCertificate
    from image_service.settings.settings import Settings

SAMPLE_SECONDS = 30
"""Between two measurements of the disk."""
KNOWN_SECONDS = 10 * SAMPLE_SECONDS
"""How long a measurement is shown; a file system that hangs gives no new one."""


def add_gauges(  # noqa: PLR0913 - one for each part that has gauges
    metrics: Metrics,
    *,
    catalog: Catalog,
    images: ImageFinder,
    slots: Slots,
    listeners: Listeners,
    handlers: Iterable[ImageRequestHandler],
) -> None:
    """Have the metrics page show the state of these parts."""
    metrics.read_gauges("registry_base_images", lambda: _count_registry_images(catalog.statuses()))
    metrics.count_states("base_images", lambda: [status.state.value for status in catalog.statuses()])
    metrics.read_gauge("snapshot_held_bytes", lambda: images.cache.held_bytes)
    metrics.read_gauges(
        "cache_bytes",
        lambda: {**images.cache_bytes(), "routes": sum(each.routes_bytes for each in handlers)},
    )
    metrics.read_gauge("snapshot_grace_active", lambda: images.snapshots.in_grace)
    metrics.read_gauges("snapshot_store_failing", lambda: images.snapshots.store_failing)
    metrics.read_gauge("slots_limit", lambda: slots.limit)
    metrics.read_gauge("slots_taken", lambda: slots.acquired)
    metrics.read_gauge("slots_queue_length", lambda: slots.waiting)
    metrics.read_gauge("connections", lambda: listeners.connections)
    metrics.count_states("http_requests_inflight", listeners.handlers)


def _count_registry_images(statuses: Iterable[ImageStatus]) -> Mapping[tuple[str, ...], float]:
    """Return how many base images are served of each digest in a registry."""
    served: Counter[tuple[str, ...]] = Counter()
    for status in statuses:
        if is_registry_url(status.entry.url):
            image = parse_registry_url(status.entry.url).reference
            digest = status.layer or image.digest
            served[image.registry, image.repository, digest] += status.size is not None
    return served


def add_leader_gauges(  # noqa: PLR0913 - one for each thing that is measured
    metrics: Metrics,
    parts: PartsStack,
    settings: Settings,
    streams: Streams,
    quota: DiskQuota,
    *,
    certificate: ServerCertificate | None,
) -> None:
    """Have the metrics page show what only one process measures; warn of a certificate that ends.

    Args:
        parts: measures run until they stop.
        quota: of ``DATA_DIR``.
        certificate: the listener's; None: images are served in plain HTTP.
    """
    metrics.read_gauges("stream_refresh_failures", lambda: streams.failures)
    metrics.read_gauges("stream_refresh_age_seconds", lambda: streams.ages_seconds)
    usage = DiskSampler(quota.measure, parts.in_thread_pool(1, "disk usage"), parts.reactor)
    parts.call_every(SAMPLE_SECONDS, usage.sample, now=True)
    metrics.read_gauge("data_dir_file_system_bytes", lambda: usage.get(lambda latest: latest.size))
    metrics.read_gauge("data_dir_free_bytes", lambda: usage.get(lambda latest: latest.free))
    metrics.read_gauge("data_dir_used_bytes", lambda: usage.get(lambda latest: latest.counted))
    metrics.read_gauge("data_dir_limit_bytes", lambda: quota.max_bytes)
    metrics.read_gauge("snapshot_store_bytes", lambda: usage.get(lambda latest: latest.excluded))
    metrics.read_gauge("snapshot_store_limit_bytes", lambda: settings.snapshots.store_bytes)
    if certificate is not None:
        metrics.read_gauges(
            "certificate_not_after_seconds", lambda: {"server": certificate.get().not_after.timestamp()}
        )
        parts.call_every(CHECK_SECONDS, ExpiryWarnings(certificate).check)


class DiskSampler:
    """Measures a directory in a thread, because its file system may hang."""

    _log = Logger()

    def __init__(self, measure: Callable[[], DiskUsage], in_thread: InThread, clock: IReactorTime) -> None:
        self._measure = measure
        self._in_thread = in_thread
        self._clock = clock
        self._usage: DiskUsage | None = None
        self._known_until = 0.0
        self._fault = ""

    def get(self, read: Callable[[DiskUsage], int]) -> int | None:
        """Return a number of the latest measurement; None: that failed, or is too old."""
        if self._usage is None or self._clock.seconds() > self._known_until:
            return None
        return read(self._usage)

    async def sample(self) -> None:
        """Measure once."""
        try:
            self._usage = await self._in_thread(self._measure)
        except OSError as error:
            self._usage, fault = None, describe_os_error(error)
            if fault != self._fault:
                self._log.warn("cannot measure the data directory: {reason}", reason=fault)
            self._fault = fault
        else:
            self._known_until, self._fault = self._clock.seconds() + KNOWN_SECONDS, ""
