"""The composition root of the jobs role: builds it of its packages."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from image_service.app.jobs.apis import build_jobs
from image_service.app.jobs.base_images import start_compose_bases
from image_service.app.jobs.built_in_worker import start_worker
from image_service.app.jobs.composes_api import ComposesApi
from image_service.app.jobs.engine import start_engine
from image_service.app.jobs.memory import return_large_blocks
from image_service.app.jobs.rows import open_rows
from image_service.app.jobs.state import JobsState
from image_service.app.role_service import RoleService
from image_service.app.signing import start_signing
from image_service.common.objects.build import open_store
from image_service.jobs.api.front import ApiFront
from image_service.jobs.artifacts.build_artifacts import build_artifacts
from image_service.jobs.dispatch.upkeep import EXPIRE_SECONDS, RECONCILE_SECONDS, Expiry, Reconciler
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.metrics.row_counts import SAMPLE_SECONDS, RowCounts
from image_service.jobs.tenants.build_tenants import build_authenticator
from image_service.server.admin.listener import start_admin
from image_service.server.admin.status_page import page_files
from image_service.server.catalog.storage.data_dir import create_directory
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.listening import ApiListener
from image_service.server.web_api.resource import ApiSite
from image_service.settings.jobs.jobs import UnixAddress

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from image_service.app.jobs.engine import StartedEngine
    from image_service.app.jobs.rows import JobsRows
    from image_service.common.objects.store import ObjectStorage
    from image_service.jobs.engine.engine import Engine
    from image_service.settings.jobs.role import JobsRoleSettings

MAX_CONNECTIONS = 4096
"""On each address; each poll of a worker and each download is one."""
STATUS_SECONDS = 5.0
"""Interval at which the service manager learns whether the engine answers, if that has changed."""
LARGE_REQUESTS = 2
"""At a time: their content is in memory."""
LARGE_REQUESTS_OF_TENANT = 16
"""That are received, or wait."""
_TOKEN_BYTES = 32


class JobsService(RoleService):
    """The jobs role, in one process with its children."""

    def __init__(self, reactor: EPollReactor, settings: JobsRoleSettings) -> None:
        super().__init__(reactor, force=lambda: None)
        self._settings = settings

    async def start_parts(self) -> None:
        """Start the parts in the order in which they need each other; they stop in reverse order."""
        return_large_blocks()
        settings, parts = self._settings, self._parts
        create_directory(settings.storage.data_dir)
        rows = open_rows(parts, settings)
        bases = await start_compose_bases(parts, settings)
        store = open_store(settings.jobs.store_url, settings.s3.options, settings.jobs.store_reserve_bytes)
        get_signing_keys = start_signing(settings.signing)
        artifacts = build_artifacts(
            parts,
            settings.catalog,
            settings.storage,
            http=bases.http,
            isos=bases.isos,
            streams=bases.sync.streams,
            disks=bases.disks,
            aliases=settings.jobs.distribution_aliases,
            byte_server_url=settings.jobs.byte_server_url,
            composes=rows.composes,
            jobs=rows.jobs,
            images=rows.images,
            store=store,
            get_signing_keys=get_signing_keys,
        )
        engine = await start_engine(parts, settings)
        metrics = self._start_metrics(rows, engine)
        jobs = build_jobs(parts, settings, rows, store, artifacts, engine.engine, metrics, get_signing_keys)
        engine.connection.start(jobs.actions)
        parts.push_async_callback(engine.connection.stop)
        self._start_upkeep(rows, store, engine.engine)
        in_thread = parts.in_thread_pool(1, "probes")
        state = JobsState(rows, engine, bases.isos.catalog, metrics.render, in_thread)
        composes = ComposesApi(rows, jobs.composes, artifacts.contents, state)
        start_admin(parts, settings, state, apis=[composes], files=page_files("jobs.html"))
        worker_token = secrets.token_urlsafe(_TOKEN_BYTES)
        authenticator = build_authenticator(parts, settings.tenants, settings.proxies, worker_token)
        large_requests = UploadSlots(
            LARGE_REQUESTS,
            settings.jobs.min_upload_rate,
            parts.reactor,
            most_of_source=LARGE_REQUESTS_OF_TENANT,
        )
        self._listen(ApiFront(authenticator, jobs.apis, jobs.ec2_api, large_requests))
        if settings.worker_slots and settings.jobs.socket_path:
            start_worker(
                parts,
                settings.storage.data_dir,
                settings.jobs,
                slots=settings.worker_slots,
                worker_token=worker_token,
            )
        self.manager.ready()
        parts.call_every(
            STATUS_SECONDS,
            lambda: self.manager.set_status(engine.fault or "the job engine answers"),
            now=True,
        )
        self.announce_page(settings.admin, settings.tls)

    def _start_metrics(self, rows: JobsRows, engine: StartedEngine) -> JobsMetrics:
        """Return the metrics, and update those of engine and rows from now on."""
        metrics = JobsMetrics()
        metrics.watch_engine(lambda: engine.connection.is_available)
        counts = RowCounts(
            metrics,
            rows.composes,
            rows.jobs,
            rows.workers,
            rows.tasks,
            self._settings.jobs.heartbeat_seconds,
            self._parts.in_thread_pool(1, "metrics"),
        )
        self._parts.call_every(SAMPLE_SECONDS, counts.sample, now=True)
        return metrics

    def _start_upkeep(self, rows: JobsRows, store: ObjectStorage, engine: Engine) -> None:
        """Reconcile rows and engine, and delete expired composes, from now on."""
        in_thread = self._parts.in_thread_pool(1, "upkeep")
        reconciler = Reconciler(rows.composes, rows.jobs, engine, in_thread)
        expiry = Expiry(
            rows.composes,
            rows.objects,
            rows.images,
            rows.tasks,
            rows.workers,
            store,
            in_thread,
            retention_seconds=self._settings.jobs.retention_seconds,
            image_retention_seconds=self._settings.ec2.image_retention_seconds,
        )
        self._parts.call_every(RECONCILE_SECONDS, reconciler.reconcile)
        self._parts.call_every(EXPIRE_SECONDS, expiry.expire)

    def _listen(self, front: ApiFront) -> None:
        """Listen on all of ``JOBS_LISTEN``; with tokens, requests may have any field ``Host``."""
        settings = self._settings
        guard = RequestGuard(any_host=settings.tenants.is_enabled)
        site = ApiSite(front.resource(guard), self._reactor, front.max_body_bytes)
        listener = ApiListener(
            self._parts, "JOBS_LISTEN", ", ".join(sorted(settings.served_apis)), site, MAX_CONNECTIONS
        )
        for address in settings.jobs.listen:
            if isinstance(address, UnixAddress):
                listener.listen_unix(address.path)
            else:
                listener.listen(address, settings.tls)
