"""The status of the service's processes, as JSON for the status page."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service import __version__
from image_service.common.files.certificates import RENEWAL_PERIOD
from image_service.server.http.dates import format_rfc3339
from image_service.server.observability.log import present_level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.common.database.monitor import DatabaseMonitor
    from image_service.server.assisted.failure_log import UpstreamHealth
    from image_service.server.streams.streams import Streams
    from image_service.server.transport.listeners import Listeners
    from image_service.server.transport.tls.certificate import ServerCertificate

StatusDocument: TypeAlias = "Mapping[str, Any]"
"""See ``Status`` in `admin.status_api`."""


@attrs.frozen(kw_only=True)
class ProcessStatus:
    """The status of one process.

    Args:
        listeners: their connections are counted.
        get_base_url: returns the URL by which clients reach the service.
        standalone: True: the embedded stand-in has the infra-envs.
        database: that replicas share; None: they share none.
        streams: that this process polls; None: another one does.
        certificate: of the listener; None: images are served in plain HTTP.
        now: the present time, in UTC.
    """

    upstream: UpstreamHealth
    listeners: Listeners
    get_base_url: Callable[[], str]
    standalone: bool
    database: DatabaseMonitor | None = None
    streams: Streams | None = None
    certificate: ServerCertificate | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    started_at: datetime = attrs.field(init=False)

    @started_at.default
    def _start(self) -> datetime:
        return self.now()

    def describe(self, unready_reason: str, impairment: str) -> StatusDocument:
        """Return the document of this process."""
        return {
            "host": None if self.database is None else socket.gethostname(),
            "version": __version__,
            "started_at": format_rfc3339(self.started_at),
            "workers": 1,
            "base_url": self.get_base_url(),
            "standalone": self.standalone,
            "log_level": present_level(),
            "stopping": self.listeners.shutting_down,
            "ready": not unready_reason,
            "reason": unready_reason or None,
            "impairment": impairment or None,
            "connections": self.listeners.connections,
            "requests": sum(1 for _ in self.listeners.handlers()),
            "upstream": self._describe_upstream(),
            "database": self._describe_database(),
            "streams": self._describe_streams(),
            "certificates": self._describe_certificates(),
        }

    def _describe_upstream(self) -> StatusDocument:
        health = self.upstream
        return {
            "url": health.url,
            "answered_at": health.answered_at and format_rfc3339(health.answered_at),
            "failed_at": health.failed_at and format_rfc3339(health.failed_at),
            "failing_since": health.failing_since and format_rfc3339(health.failing_since),
            "failure": health.failure or None,
            "failure_status": health.failure_status,
            "failures": health.failures,
        }

    def _describe_database(self) -> StatusDocument | None:
        monitor = self.database
        if monitor is None:
            return None
        return {
            "was_reached": monitor.was_reached,
            "failing_seconds": monitor.failing_seconds,
            "round_trip_seconds": monitor.round_trip_seconds if monitor.was_reached else None,
        }

    def _describe_streams(self) -> list[StatusDocument]:
        if self.streams is None:
            return []
        failures, now = self.streams.failures, self.now()
        return [
            {
                "name": name,
                "refreshed_at": format_rfc3339(now - timedelta(seconds=seconds)),
                "failures": failures[name],
            }
            for name, seconds in self.streams.ages_seconds.items()
        ]

    def _describe_certificates(self) -> list[StatusDocument]:
        if self.certificate is None:
            return []
        not_after, now = self.certificate.get().not_after, self.now()
        state = "ended" if not_after <= now else "ending" if not_after <= now + RENEWAL_PERIOD else "valid"
        return [{"file": str(self.certificate.file), "not_after": format_rfc3339(not_after), "state": state}]


def merge_statuses(statuses: Sequence[StatusDocument]) -> StatusDocument:
    """Return one document made of the documents of all processes, of which there is at least one."""
    best = max(statuses, key=lambda status: bool(status["ready"]))
    upstreams = [status["upstream"] for status in statuses]
    failed = max(upstreams, key=lambda upstream: upstream["failed_at"] or "")
    answered_at = max(upstream["answered_at"] or "" for upstream in upstreams)
    recovered = {"failing_since": None, "failures": 0} if answered_at > (failed["failed_at"] or "") else {}
    return {
        **best,
        "started_at": min(status["started_at"] for status in statuses),
        "workers": len(statuses),
        "connections": sum(status["connections"] for status in statuses),
        "requests": sum(status["requests"] for status in statuses),
        "stopping": all(status["stopping"] for status in statuses),
        "upstream": {**failed, "answered_at": answered_at or None, **recovered},
        "streams": max((status["streams"] for status in statuses), key=len),
    }
