"""Each metric, declared once: its name, its description, and the values of its labels."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import attrs

from image_service.common.registry.counts import RequestOutcome
from image_service.server.assisted.call_slots import CallClass
from image_service.server.assisted.calls import CallKind, CallOutcome
from image_service.server.boot_progress.stages import READ_AS_FILE, Stage
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.http.head import ALLOWED_METHODS
from image_service.server.http.routes import HANDLERS
from image_service.server.observability.families import (
    Counters,
    Family,
    Gauge,
    GaugeByLabel,
    Histograms,
    ReadCounters,
    SentBytesCounter,
    StateGauge,
)
from image_service.server.snapshots.image_finder import CACHES
from image_service.server.snapshots.replicas.observer import ClaimOutcome, Direction
from image_service.server.snapshots.storage.repository_access import STORE_OPERATIONS
from image_service.server.snapshots.storage.snapshot import REVALIDATION_RESULTS
from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure, RefusalReason

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
F = TypeVar("F", bound=Family)

NO_RESPONSE = 0
CODES = tuple(str(int(status)) for status in (NO_RESPONSE, *HTTPStatus))

DURATION_BOUNDS_SECONDS = (0.1, 1, 10, 50, 100, 300, 600)
SIZE_BOUNDS_BYTES = (100, 1e6, 5e8, 1e9, 1e10)
FIRST_BYTE_BOUNDS_SECONDS = (0.005, 0.05, 0.25, 1, 2, 3, 5, 10)
UPSTREAM_BOUNDS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CLAIM_BOUNDS_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 40)

REMOTE_PRESENCES = ("present", "absent")
REMOTE_OUTCOMES = ("fetched", "changed", "digest", "failed")
REMOTE_EVICTIONS = ("evicted", "fetched-again")

# assisted-image-service's library has this label, and leaves it empty.
_SERVICE = ("",)


def _values(labels: type[enum.Enum]) -> tuple[str, ...]:
    return tuple(each.value for each in labels)


def _declare(family: Callable[P, F], /, *arguments: P.args, **labels: P.kwargs) -> F:
    """Return the field of a metric, which each instance has for itself."""
    return attrs.field(init=False, factory=partial(family, *arguments, **labels))


@attrs.define(eq=False, slots=False)
class Declarations:
    """All metrics, in the order of the page. Each instance counts by itself."""

    durations = _declare(
        Histograms,
        "http_request_duration_seconds",
        "Seconds from a request's head to the end of its response. `/health`, `/live`, `/metrics` and"
        " `/images` are not measured; handler `other` is a request without a route; code `0` is a client"
        " that left before there was a response.",
        DURATION_BOUNDS_SECONDS,
        service=_SERVICE,
        handler=HANDLERS,
        method=ALLOWED_METHODS,
        code=CODES,
    )
    sizes = _declare(
        Histograms,
        "http_response_size_bytes",
        "Bytes of content sent per response, complete or not.",
        SIZE_BOUNDS_BYTES,
        service=_SERVICE,
        handler=HANDLERS,
        method=ALLOWED_METHODS,
        code=CODES,
    )
    inflight = _declare(
        StateGauge,
        "http_requests_inflight",
        "Requests in progress but those for `/health`, `/live`, `/metrics` and `/images`; `other` are"
        " those whose image is not ready yet.",
        service=_SERVICE,
        handler=HANDLERS,
    )
    first_bytes = _declare(
        Histograms,
        "http_time_to_first_byte_seconds",
        "Seconds from a request's head to the first byte of its response: at most 3.",
        FIRST_BYTE_BOUNDS_SECONDS,
        handler=HANDLERS,
    )
    sent = _declare(
        SentBytesCounter,
        "sent_bytes_total",
        "Bytes that the kernel accepted: by `sendfile`, as a `copy`, or encrypted here (`tls`).",
    )
    aborted = _declare(
        Counters,
        "aborted_responses_total",
        "Responses that were not sent to their end, by reason.",
        reason=_values(AbortReason),
    )
    refused = _declare(
        Counters,
        "refusals_total",
        "Requests refused because of the service's own load, by the limit reached: the length of the"
        " queue for slots (`queue-full`), the time in it (`queue-wait`), the connections in all"
        " (`connections`) or of one address, or the time or length of the queue for calls to"
        " assisted-service (`upstream-queue`).",
        reason=_values(RefusalReason),
    )
    handshake_failures = _declare(
        Counters,
        "tls_handshake_failures_total",
        "TLS handshakes that failed, by reason. The client does not trust the certificate"
        " (`not-trusted`, by its alert); it offers no supported TLS version (`protocol-version`), or no"
        " supported cipher suite, group or signature algorithm (`no-shared-cipher`); it sends a request"
        " in plain HTTP, which gets 400, or other bytes that are not TLS; it takes longer than"
        " `HANDSHAKE_TIMEOUT`; it closes the connection (`closed`); it sends an invalid message"
        " (`protocol-error`). A client that closes the connection before it has sent a byte, as load"
        " balancers do to check a port, is not counted.",
        reason=_values(HandshakeFailure),
    )
    certificate_not_after = _declare(
        GaugeByLabel,
        "certificate_not_after_seconds",
        "End of validity of the certificate in use, in seconds since the epoch; absent without TLS.",
        purpose=("server",),
    )
    slots_taken = _declare(
        Gauge, "slots_taken", "Downloads of more than 1 MiB in progress: each holds a slot."
    )
    slots_limit = _declare(Gauge, "slots_limit", "Number of slots: `MAX_CONCURRENT_REQUESTS`.")
    slots_queue = _declare(Gauge, "slots_queue_length", "Downloads waiting for a slot.")
    connections = _declare(Gauge, "connections", "Connections of clients.")
    upstream = _declare(
        Counters,
        "upstream_calls_total",
        "Finished calls to assisted-service. `refused` is any other 4xx; `failed` is a 5xx, an invalid"
        " response, or no connection.",
        kind=_values(CallKind),
        outcome=_values(CallOutcome),
    )
    upstream_seconds = _declare(
        Histograms,
        "upstream_call_duration_seconds",
        "Duration of calls to assisted-service, of any outcome.",
        UPSTREAM_BOUNDS_SECONDS,
        kind=_values(CallKind),
    )
    upstream_running = _declare(
        StateGauge,
        "upstream_calls_running",
        "Calls to assisted-service in progress, by what they are for: a `revalidation` of an answer in"
        " use; else a first question with credentials that assisted-service has `accepted`, with others"
        " (`unproven`), or without any (`anonymous`). Their sum is at most `UPSTREAM_CONCURRENCY`.",
        **{"class": _values(CallClass)},
    )
    upstream_waiting = _declare(
        StateGauge,
        "upstream_calls_waiting",
        "Calls to assisted-service that wait for one in progress to end, by what they are for.",
        **{"class": _values(CallClass)},
    )
    hits = _declare(
        Counters,
        "snapshot_hits_total",
        "Requests served from a valid snapshot, without a call to assisted-service.",
    )
    misses = _declare(
        Counters,
        "snapshot_misses_total",
        "Snapshots that were not stored, so that assisted-service was called.",
    )
    revalidations = _declare(
        Counters,
        "snapshot_revalidations_total",
        "Revalidations of snapshots with assisted-service, by result. `refused`: it"
        " gives no image, to these credentials or to all, and nothing is served.",
        result=tuple(result.value for result in REVALIDATION_RESULTS),
    )
    grace = _declare(
        Counters,
        "snapshot_grace_requests_total",
        "Requests served from a snapshot that could not be validated because assisted-service fails.",
    )
    in_grace = _declare(
        Gauge, "snapshot_grace_active", "Snapshots served although they could not be validated."
    )
    evictions = _declare(
        Counters,
        "snapshot_evictions_total",
        "Composed images evicted from memory; the same bytes are composed again on request.",
    )
    held = _declare(Gauge, "snapshot_held_bytes", "Memory used by composed images, in bytes.")
    caches = _declare(
        GaugeByLabel,
        "cache_bytes",
        "Memory used by caches, in bytes. `images`, `answers` of assisted-service and `routes` are sums;"
        " the others have limited numbers of entries, which count 2 KiB each.",
        cache=(*CACHES, "routes"),
    )
    base_images = _declare(
        StateGauge,
        "base_images",
        "Base images, by state; `ready`, `degraded` and `deriving` ones are served. A `degraded` one"
        " lacks something, such as its minimal ISO. That is retried, as a `failed` one is; a `refused`"
        " one is not, until the next start.",
        state=_values(BaseImageState),
    )
    stream_failures = _declare(
        GaugeByLabel,
        "stream_refresh_failures",
        "Attempts to refresh a stream that failed since the last success; 0: the last one succeeded.",
        stream=(),
    )
    stream_ages = _declare(
        GaugeByLabel,
        "stream_refresh_age_seconds",
        "Seconds since a stream was last refreshed; before the first time, since the process started.",
        stream=(),
    )
    disk_size = _declare(
        Gauge,
        "data_dir_file_system_bytes",
        "Size of the file system of `DATA_DIR`. This metric and those below are measured every 30 s; they"
        " are absent while the file system does not respond.",
    )
    disk_free = _declare(
        Gauge,
        "data_dir_free_bytes",
        "Bytes that the service can still write to the file system of `DATA_DIR`.",
    )
    disk_used = _declare(
        Gauge,
        "data_dir_used_bytes",
        "Size of the files in `DATA_DIR`, without the snapshot store: `DATA_DIR_MAX_BYTES` limits it.",
    )
    disk_limit = _declare(Gauge, "data_dir_limit_bytes", "`DATA_DIR_MAX_BYTES`; absent if it is not set.")
    store_bytes = _declare(
        Gauge,
        "snapshot_store_bytes",
        "Size of the files of the snapshot store: `SNAPSHOT_STORE_BYTES` limits it.",
    )
    store_limit = _declare(Gauge, "snapshot_store_limit_bytes", "`SNAPSHOT_STORE_BYTES`.")
    store_failing = _declare(
        GaugeByLabel,
        "snapshot_store_failing",
        "Processes whose latest attempt to read or write stored snapshots failed; memory has to do.",
        operation=STORE_OPERATIONS,
    )
    database_unreachable = _declare(
        Gauge,
        "database_unreachable",
        "Processes that cannot reach the database of `DATABASE_URL`, which replicas share; new infra-envs"
        " get 503.",
    )
    database_round_trip = _declare(
        Gauge, "database_round_trip_seconds", "Seconds that the database took to answer the latest check."
    )
    database_clock_offset = _declare(
        Gauge,
        "database_clock_offset_seconds",
        "Seconds by which the database's clock is ahead of this host's; all stored instants are its.",
    )
    claims = _declare(
        Counters,
        "claims_total",
        "Claims of replicas, so that one process of all asks assisted-service: `acquired` at once;"
        " `waited` for another one's; `taken-over`, because another process had let it expire;"
        " `unavailable`: the database could not be used, and this process asked whatever others do.",
        outcome=_values(ClaimOutcome),
    )
    claim_seconds = _declare(
        Histograms,
        "claims_wait_seconds",
        "Seconds that a process waited for a claim, of any outcome.",
        CLAIM_BOUNDS_SECONDS,
    )
    claim_changes = _declare(
        Counters,
        "claims_changes_total",
        "Changes that replicas announce to each other.",
        direction=_values(Direction),
    )
    claims_polling = _declare(
        Gauge,
        "claims_polling",
        "Processes that poll for changes of other replicas, because no notifications arrive (see"
        " `DATABASE_LISTEN_URL`).",
    )

    remote_read = _declare(
        ReadCounters,
        "remote_read_bytes_total",
        "Bytes of remote base images that senders found on local disk (`present`) or had to wait for"
        " (`absent`).",
        presence=REMOTE_PRESENCES,
    )
    remote_fetched = _declare(
        ReadCounters, "remote_fetched_bytes_total", "Bytes of remote base images that origins sent."
    )
    remote_fetches = _declare(
        ReadCounters,
        "remote_fetches_total",
        "Ranges that were fetched from origins of remote base images: `fetched`; `changed`: the origin"
        " has another version; `digest`: a block does not have its digest; `failed`: any other reason.",
        outcome=REMOTE_OUTCOMES,
    )
    remote_fetch_seconds = _declare(
        ReadCounters,
        "remote_fetch_seconds_total",
        "Seconds that ranges took which were fetched, one after the other.",
    )
    remote_evicted = _declare(
        ReadCounters,
        "remote_evicted_blocks_total",
        "Blocks of 1 MiB that were evicted from the cache, and those that were fetched again afterwards.",
        kind=REMOTE_EVICTIONS,
    )
    remote_waiting = _declare(Gauge, "remote_waiting_readers", "Readers that wait for an origin.")
    remote_in_flight = _declare(Gauge, "remote_in_flight_bytes", "Bytes that are being fetched from origins.")
    remote_cache = _declare(
        Gauge, "remote_cache_bytes", "Disk space that the cache of remote base images takes, every 30 s."
    )
    remote_cache_limit = _declare(
        Gauge, "remote_cache_limit_bytes", "Disk space that it may take: `REMOTE_CACHE_MAX_BYTES`."
    )

    registry_requests = _declare(
        ReadCounters,
        "registry_requests_total",
        "Requests to OCI registries for manifests, and for blobs or ranges of them: `answered`;"
        " `unauthorized` (401, 403), `absent` (404), `busy` (429) and `failed`, by status; `wrong`: an answer"
        " that does not fit the request, or a manifest with another digest; `unreachable`: no answer."
        " Repositories beyond the first 100 are `other`.",
        registry=(),
        repository=(),
        outcome=tuple(RequestOutcome),
    )
    registry_base_images = _declare(
        GaugeByLabel,
        "registry_base_images",
        "Base images of OCI registries that are served: 0 for one that is not.",
        registry=(),
        repository=(),
        digest=(),
    )

    mounts = _declare(
        StateGauge,
        "mounts",
        "Clients that have read an image within `MOUNT_STALL_SECONDS`, by the stage of their boot;"
        " `file`: an image or a boot artifact that is read as a whole.",
        stage=(*_values(Stage), READ_AS_FILE),
    )
    mounts_moved = _declare(
        Gauge,
        "mounts_moved",
        "Machines that have read an image within `MOUNT_STALL_SECONDS` to boot from it, and before that one"
        " of another infra-env.",
    )

    workers = _declare(Gauge, "workers", "Serving processes, if there are several: `WORKERS`.")
    worker_restarts = _declare(
        Counters, "worker_restarts_total", "Serving processes started in place of one that died."
    )

    def __iter__(self) -> Iterator[Family]:
        """Return the metrics in the order of the page."""
        return iter(vars(self).values())
