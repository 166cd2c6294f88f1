"""Admission of connections: how many there are, and which is closed to let a new one in.

All that takes time happens when a connection beyond the limit is accepted, and the search at most once per
second, so that requests and idle connections cost nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.server.http.forwarded import is_trusted_proxy
from image_service.server.transport.admission.addresses import address_group
from image_service.server.transport.admission.counts import CONNECTIONS
from image_service.server.transport.admission.slots import SMALL_BYTES
from image_service.server.transport.sending.observer import AbortReason, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Collection

    from twisted.internet.interfaces import IReactorTime

    from image_service.server.http.forwarded import Network
    from image_service.server.transport.admission.counts import Counts
    from image_service.server.transport.sending.observer import Observer
    from image_service.settings.network import LimitSettings

OVERLOAD_RESERVE = 64
"""Connections that each process accepts beyond the limit: for probes, and to refuse others by a response."""
MIN_IDLE_SECONDS = 1.0
"""A connection that has waited for a request for a shorter time is not closed for another."""
MIN_IDLE_PROVEN_SECONDS = 20.0
"""The same for a proven one. Slow readers are never idle, and are closed first; else mounts would be."""
SEARCH_SECONDS = 1.0
"""How long a list of idle connections is used."""


@attrs.define(eq=False)
class Admission:
    """A connection, as the limit knows it.

    Args:
        group: of the client's address (`address_group`); behind a trusted proxy that of the latest request.
        overloaded: it is beyond a limit: only probes are answered, one per connection.
    """

    group: str
    overloaded: bool
    is_proven: bool = attrs.field(default=False, init=False)
    """The client has been served an image, for which credentials, or at least an identifier, are needed."""


class LimitedConnection(Protocol):
    """A connection as the limit sees it."""

    admission: Admission

    @property
    def exchange(self) -> object | None:
        """The request in progress."""

    @property
    def idle_since(self) -> float | None:
        """When it began to wait for a request, the clock's seconds; None: it does not wait for one."""

    @property
    def unread_since(self) -> float | None:
        """When it began to wait for the client to take a response without a slot; None: it does not."""

    def abort(self, reason: AbortReason, detail: str) -> None:
        """Abort the response in progress."""

    def close(self, *, at_once: bool) -> None:
        """Close it; `at_once`: without lingering."""


class ConnectionLimit:
    """The limit on the connections to all listeners.

    Args:
        proxies: networks of trusted proxies.
        counts: of all processes.
    """

    def __init__(
        self,
        limits: LimitSettings,
        proxies: Collection[Network],
        counts: Counts,
        clock: IReactorTime,
        observer: Observer,
    ) -> None:
        self.listeners: list[Collection[LimitedConnection]] = []
        """The connections of each listener; their owners update them."""
        self._limit = limits.connections
        rate = limits.min_download_rate
        self._slow_seconds = SMALL_BYTES / rate if rate else float("inf")  # for responses that need no slot
        self._limit_per_address = limits.connections_per_address
        self._proxies = proxies
        self._counts = counts
        self._clock = clock
        self._observer = observer
        self._by_group: Counter[str] = Counter()
        self._reserve: dict[LimitedConnection, None] = {}  # the oldest first
        self._closed: set[LimitedConnection] = set()  # by the limit; counted no more, though not lost yet
        self._idle: list[tuple[LimitedConnection, float]] = []  # and since when; the last is closed next
        self._searched_at = float("-inf")

    def admit(self, address: str) -> Admission | None:
        """Decide on a connection; if it is beyond the limit, close another one for it.

        Returns:
            None: it is refused.
        """
        group = address_group(address)
        most = self._limit_per_address
        if most and self._by_group[group] >= most and not is_trusted_proxy(address, self._proxies):
            self._observer.record_refusal(RefusalReason.CONNECTIONS_PER_ADDRESS)
            return None
        if self._counts.total(CONNECTIONS) < self._limit or self._close_idle():
            return Admission(group, overloaded=False)
        # Not the reserve of all processes: one may have every connection in it, and another close none.
        if len(self._reserve) < OVERLOAD_RESERVE or self._close_in_reserve():
            return Admission(group, overloaded=True)
        self._observer.record_refusal(RefusalReason.CONNECTIONS)
        return None

    def add(self, connection: LimitedConnection) -> None:
        """Count a connection that was admitted."""
        self._counts.add(CONNECTIONS, 1)
        self._by_group[connection.admission.group] += 1
        if connection.admission.overloaded:
            self._reserve[connection] = None

    def remove(self, connection: LimitedConnection) -> None:
        """Count a connection no more: it is gone."""
        if connection in self._closed:
            self._closed.remove(connection)
        else:
            self._discount(connection)

    def set_group(self, admission: Admission, group: str) -> None:
        """Count a connection for another address, as a trusted proxy reports it; it may be too many."""
        self._discount_group(admission.group)
        admission.group = group
        self._by_group[group] += 1
        if self._limit_per_address and self._by_group[group] > self._limit_per_address:
            self._observer.record_refusal(RefusalReason.CONNECTIONS_PER_ADDRESS)
            admission.overloaded = True

    def _discount(self, connection: LimitedConnection) -> None:
        self._counts.add(CONNECTIONS, -1)
        self._discount_group(connection.admission.group)
        self._reserve.pop(connection, None)

    def _discount_group(self, group: str) -> None:
        self._by_group[group] -= 1
        if not self._by_group[group]:
            del self._by_group[group]

    def _close(self, connection: LimitedConnection) -> None:
        self._discount(connection)
        self._closed.add(connection)
        if connection.exchange is None:
            connection.close(at_once=True)
        else:
            connection.abort(AbortReason.TOO_SLOW, "too slow while other connections waited")

    def _close_in_reserve(self) -> bool:
        """Close the oldest connection of the reserve on which no request is in progress."""
        for connection in self._reserve:
            if connection.exchange is None:
                self._close(connection)
                return True
        return False

    def _close_idle(self) -> bool:
        """Close the connection that is to go first of those that wait for their clients."""
        now = self._clock.seconds()
        if now - self._searched_at >= SEARCH_SECONDS:
            self._searched_at = now
            self._idle = self._find_idle(now)
        while self._idle:
            connection, since = self._idle.pop()
            if self._closable_since(connection, now) == since and connection not in self._closed:
                self._close(connection)
                return True
        return False

    def _closable_since(self, connection: LimitedConnection, now: float) -> float | None:
        """Return since when a connection has waited for its client; None: not for long enough to be closed.

        One that waits for a client that is not proven to take a response without a slot counts too.
        """
        is_proven = connection.admission.is_proven
        since, enough = connection.idle_since, MIN_IDLE_PROVEN_SECONDS if is_proven else MIN_IDLE_SECONDS
        if since is None and not is_proven:
            since, enough = connection.unread_since, self._slow_seconds
        return since if since is not None and now - since >= enough else None

    def _find_idle(self, now: float) -> list[tuple[LimitedConnection, float]]:
        """Return the connections that wait for their clients, the one that is to go first at the end.

        First those that are not proven; of them, one of the address with the most connections that would then
        be left; of those, the one that has waited longest.
        """
        by_group: defaultdict[str, list[tuple[bool, float, LimitedConnection]]] = defaultdict(list)
        for connection in chain.from_iterable(self.listeners):
            since, admission = self._closable_since(connection, now), connection.admission
            if since is not None and not admission.overloaded:
                by_group[admission.group].append((admission.is_proven, since, connection))
        ranked = []
        for group, idle in by_group.items():
            idle.sort(key=lambda each: each[:2])
            count = self._by_group[group]
            ranked += [
                ((is_proven, closed - count, since), connection)
                for closed, (is_proven, since, connection) in enumerate(idle)
            ]
        ranked.sort(key=lambda each: each[0], reverse=True)
        return [(connection, since) for (_, _, since), connection in ranked]
