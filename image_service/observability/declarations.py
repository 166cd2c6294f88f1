"""Each metric, declared once: its name, its meaning, and the values that its labels may have."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.catalog.lifecycle.status import BaseImageState
from image_service.observability.families import (
    Counters,
    Family,
    Gauge,
    Histograms,
    SentBytesCounter,
    StateGauge,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HANDLERS = (
    "/images/:imageID",
    "/byid/:token",
    "/byapikey/:token",
    "/bytoken/:token",
    "/images/:imageID/pxe-initrd",
    "/images/:imageID/s390x-initrd-addrsize",
    "/boot-artifacts/kernel",
    "/boot-artifacts/rootfs",
    "/boot-artifacts/ins-file",
    "/boot-artifacts/:version/:arch/:file",
    "/clusters/:clusterID/downloads/image",
    "/streams/:document",
    "/streams/:stream/:document",
    "/streams/:stream/:release/:arch/:file",
)
"""assisted-image-service's names for its routes, and ours for the last five."""
METHODS = ("GET", "HEAD", "OPTIONS")
NO_ANSWER = 0
CODES = tuple(str(int(status)) for status in (NO_ANSWER, *HTTPStatus))
UPSTREAM_KINDS = ("ignition", "infra-env", "ramdisk")
UPSTREAM_OUTCOMES = ("ok", "unauthorized", "forbidden", "not-found", "refused", "failed", "timeout")
REVALIDATION_RESULTS = ("unchanged", "changed", "ended", "failed")
REFUSAL_REASONS = ("queue-full", "queue-wait", "connections")
ABORT_REASONS = ("client-gone", "no-progress", "going-away", "disk-failed", "file-shorter", "own-fault")
BASE_IMAGE_STATES = tuple(state.value for state in BaseImageState)

DURATION_BOUNDS_SECONDS = (0.1, 1, 10, 50, 100, 300, 600)
SIZE_BOUNDS_BYTES = (100, 1e6, 5e8, 1e9, 1e10)
FIRST_BYTE_BOUNDS_SECONDS = (0.005, 0.05, 0.25, 1, 2, 3, 5, 10)
UPSTREAM_BOUNDS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# The library by which assisted-image-service measures has a label for this, which is left empty there.
_SERVICE = ("",)


class Declarations:
    """All metrics, in the order in which they are shown. Each instance counts by itself."""

    def __init__(self) -> None:
        self.durations = Histograms(
            "http_request_duration_seconds",
            "Seconds from a request's head to the end of its answer. `/health`, `/live`, `/metrics` and"
            " `/images` are not measured; handler `other` is what no route is for; code `0` is a client that"
            " left before there was an answer.",
            DURATION_BOUNDS_SECONDS,
            service=_SERVICE,
            handler=HANDLERS,
            method=METHODS,
            code=CODES,
        )
        self.sizes = Histograms(
            "http_response_size_bytes",
            "Bytes of content that were sent of an answer, whole or not.",
            SIZE_BOUNDS_BYTES,
            service=_SERVICE,
            handler=HANDLERS,
            method=METHODS,
            code=CODES,
        )
        self.inflight = StateGauge(
            "http_requests_inflight",
            "Requests that are being answered; `other` are those whose image is not there yet.",
            service=_SERVICE,
            handler=HANDLERS,
        )
        self.first_bytes = Histograms(
            "http_time_to_first_byte_seconds",
            "Seconds from a request's head to the first byte of its answer: 3 at most, whatever happens.",
            FIRST_BYTE_BOUNDS_SECONDS,
            handler=HANDLERS,
        )
        self.sent = SentBytesCounter(
            "sent_bytes_total",
            "Bytes that the kernel took: by `sendfile`, as a `copy`, or encrypted by us (`tls`).",
        )
        self.aborted = Counters(
            "aborted_responses_total",
            "Answers that did not come to their end, and why.",
            reason=ABORT_REASONS,
        )
        self.refused = Counters(
            "refusals_total",
            "Requests that were refused because of our own load, and what was at its limit: the queue for"
            " slots (`queue-full`), the time in it (`queue-wait`), or the connections.",
            reason=REFUSAL_REASONS,
        )
        self.slots_taken = Gauge(
            "slots_taken", "Downloads of more than 1 MiB that are going on: each has a slot."
        )
        self.slots_limit = Gauge("slots_limit", "Slots that there are: `MAX_CONCURRENT_REQUESTS`.")
        self.slots_queue = Gauge("slots_queue_length", "Downloads that wait for a slot.")
        self.connections = Gauge("connections", "Connections of clients.")
        self.upstream = Counters(
            "upstream_calls_total",
            "Calls to assisted-service that have ended. `refused` is a 4xx without a name of its own;"
            " `failed` is 5xx, garbage, or no connection.",
            kind=UPSTREAM_KINDS,
            outcome=UPSTREAM_OUTCOMES,
        )
        self.upstream_seconds = Histograms(
            "upstream_call_duration_seconds",
            "Seconds that calls to assisted-service took, whatever came of them.",
            UPSTREAM_BOUNDS_SECONDS,
            kind=UPSTREAM_KINDS,
        )
        self.hits = Counters(
            "snapshot_hits_total",
            "Requests served from a snapshot that is taken as current: nobody was asked.",
        )
        self.misses = Counters(
            "snapshot_misses_total",
            "Snapshots that were not there, so that assisted-service was asked.",
        )
        self.revalidations = Counters(
            "snapshot_revalidations_total",
            "Snapshots that assisted-service was asked about again, and what came of it. `ended`: it refused"
            " the infra-env or the credentials.",
            result=REVALIDATION_RESULTS,
        )
        self.grace = Counters(
            "snapshot_grace_requests_total",
            "Requests served from a snapshot that could not be validated, because assisted-service fails.",
        )
        self.in_grace = Gauge(
            "snapshot_grace_active", "Snapshots that are served although they could not be validated."
        )
        self.evictions = Counters(
            "snapshot_evictions_total",
            "Composed images that made room in memory; the same bytes are composed again when asked for.",
        )
        self.held = Gauge("snapshot_held_bytes", "Bytes of memory that composed images hold.")
        self.base_images = StateGauge(
            "base_images",
            "Base images, by how far they have come. One that `failed` is tried again; one that was"
            " `refused` is not, until the next start.",
            state=BASE_IMAGE_STATES,
        )

        self.workers = Gauge("workers", "Processes that serve, where there are several: `WORKERS`.")
        self.worker_restarts = Counters(
            "worker_restarts_total", "Workers that took the place of one that died."
        )

    def __iter__(self) -> Iterator[Family]:
        """Give them all."""
        return iter(vars(self).values())
