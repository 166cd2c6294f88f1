"""Counts of requests to registries, by repository and outcome; for metrics."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.common.registry.errors import RegistryFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.registry.mirrors import Endpoint

MAX_REPOSITORIES = 100
OTHER = "other"


class RequestOutcome(StrEnum):
    """What became of a request for a manifest or a blob, after redirects and tokens."""

    ANSWERED = "answered"
    UNAUTHORIZED = "unauthorized"
    ABSENT = "absent"
    BUSY = "busy"
    FAILED = "failed"
    WRONG = "wrong"
    UNREACHABLE = "unreachable"


_BY_STATUS: Mapping[int, RequestOutcome] = {
    0: RequestOutcome.WRONG,
    HTTPStatus.UNAUTHORIZED: RequestOutcome.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: RequestOutcome.UNAUTHORIZED,
    HTTPStatus.NOT_FOUND: RequestOutcome.ABSENT,
    HTTPStatus.TOO_MANY_REQUESTS: RequestOutcome.BUSY,
}


class RegistryCounts:
    """Counts by registry and repository, for the first `MAX_REPOSITORIES`; may be used in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repositories: set[tuple[str, str]] = set()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def add(self, endpoint: Endpoint, error: Exception | None = None) -> None:
        """Count a request that was answered, or that ended with an error."""
        outcome = RequestOutcome.ANSWERED
        if isinstance(error, RegistryFailed):
            outcome = _BY_STATUS.get(error.status, RequestOutcome.FAILED)
        elif error is not None:
            outcome = RequestOutcome.UNREACHABLE
        with self._lock:
            repository = endpoint.registry, endpoint.repository
            if len(self._repositories) < MAX_REPOSITORIES:
                self._repositories.add(repository)
            named = repository if repository in self._repositories else (OTHER, OTHER)
            self._counts[*named, outcome.value] += 1

    def read(self) -> Mapping[tuple[str, ...], float]:
        """Return the counts by registry, repository and outcome."""
        with self._lock:
            return dict(self._counts)
