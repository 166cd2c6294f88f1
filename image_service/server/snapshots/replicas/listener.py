"""Hears what other replicas change: by notifications, or by asking each second where those do not arrive.

One process of a host listens for all of them; when it ends, another one takes over. After any time in which
something may have been missed, all counters are changed: everything that is cached is read again.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.concurrency.backoff import Backoff
from image_service.common.database.listening import listening
from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from image_service.common.concurrency.coordination import SharedMemoryCoordination
    from image_service.common.database.listening import ListeningConnection
    from image_service.common.database.postgresql import PostgresqlDatabase

_log = Logger()

LOCK = "listener"
POLL_SECONDS = 1.0
MAX_GAP_SECONDS = 5.0
"""Between two polls; after a longer one, what a slow transaction has written may be missed."""
CHECK_SECONDS = 15.0
"""Between two checks that notifications still arrive."""
ECHO_SECONDS = 2.0
"""How long a notification may take."""
STOP_SECONDS = 5.0
"""How long a database that hangs may delay the end of the process."""
_BACKOFF = Backoff(1.0, 300.0)
"""Of attempts to listen where notifications do not arrive."""


class Listener:
    """A thread that keeps the counters of a host in step.

    Args:
        url: to listen at; the database's own if it has no pooler before it.
        local: its counters are changed.
        received: is called with the number of changes, in the thread.
    """

    def __init__(
        self,
        url: str,
        database: PostgresqlDatabase,
        local: SharedMemoryCoordination,
        received: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._database = database
        self._local = local
        self._received = received
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopped = threading.Event()
        self._failures = 0
        self._polled_at, self._seen = -inf, frozenset[int]()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stopped.set()
        os.eventfd_write(self._interrupt, 1)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            os.close(self._interrupt)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._local.try_local_lock(LOCK) as is_alone:
                    if is_alone:
                        self._hear()
            except OSError as error:
                _log.error("cannot lock: {reason}; each serving process listens", reason=error.strerror)
                self._hear()
            except Exception:  # noqa: BLE001 - whatever it is, changes must be heard again
                _log.failure("unexpected error while listening to other replicas")
            self._stopped.wait(POLL_SECONDS)

    def _hear(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except StoreFailed as error:
                if self._local.is_notified or not self._failures:
                    _log.warn("not notified by other replicas: {reason}", reason=error.detail)
                self._failures += 1
                self._poll(_BACKOFF.delay_seconds(self._failures))
            finally:
                self._local.is_notified = False

    def _listen(self) -> None:
        with listening(self._url, changes.CHANNEL) as connection:
            self._check(connection)
            self._local.bump_all()
            self._local.is_notified = True
            if self._failures:
                _log.info("notified by other replicas again")
            self._failures = 0
            while (payloads := connection.receive(CHECK_SECONDS, self._interrupt)) is not None:
                self._adopt(payloads)
                if not payloads:
                    self._check(connection)

    def _check(self, connection: ListeningConnection) -> None:
        """Raise StoreFailed unless notifications arrive: a pooler may take LISTEN, and pass none on."""
        echo, until = secrets.token_hex(), time.monotonic() + ECHO_SECONDS
        self._database.transact(partial(changes.notify, payload=echo))
        while (left := until - time.monotonic()) > 0:
            payloads = connection.receive(left, self._interrupt)
            self._adopt(payloads or ())
            if payloads is None or echo in payloads:
                return
        raise StoreFailed("notifications do not arrive; DATABASE_LISTEN_URL must name the server itself")

    def _poll(self, seconds: float) -> None:
        """Ask each second, for so long, or until the database can be used again."""
        until = time.monotonic() + seconds
        has_failed = False
        while time.monotonic() < until and not self._stopped.is_set():
            now = time.monotonic()
            try:
                rows = self._database.transact(changes.read)
            except StoreFailed:
                has_failed = True
            else:
                if now > self._polled_at + MAX_GAP_SECONDS:
                    self._local.bump_all()
                else:
                    self._adopt(rows[number] for number in rows.keys() - self._seen)
                self._polled_at, self._seen = now, frozenset(rows)
                if has_failed:
                    return
            self._stopped.wait(POLL_SECONDS)

    def _adopt(self, payloads: Iterable[str]) -> None:
        changed = list(chain.from_iterable(map(changes.parse, payloads)))
        for key, counter in changed:
            self._local.adopt(key, counter)
        if changed:
            self._received(len(changed))
