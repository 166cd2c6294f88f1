"""A client that measures when the first byte of each answer comes, and what of that the machine adds."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROMISED_SECONDS = 3.0
ALLOWED_SECONDS = 1.0
"""The most that a busy machine may add."""
_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.05
REFUSALS = frozenset({502, 503, 504})


@attrs.frozen
class LoggedRequest:
    """What one request was told.

    Args:
        seconds: until the first byte.
        late: what of them the machine may be blamed for.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)
    seconds: float
    late: float

    def check_time(self) -> None:
        """See that the promise was kept."""
        assert self.seconds < PROMISED_SECONDS + min(self.late, ALLOWED_SECONDS), self

    def check_refusal(self) -> None:
        """See that it says who is at fault, and when to come again."""
        assert self.status in REFUSALS, self
        assert int(self.headers["Retry-After"]) > 0
        assert self.headers["Content-Type"] == "application/problem+json", self


class Client:
    """Asks for images, and measures.

    Args:
        authority: host and port of who is asked.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._lives: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live)

    @contextmanager
    def measuring(self) -> Iterator[Client]:
        """Ask whether the service lives for as long as the block lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def ask(self, path: str, method: str, fields: Mapping[str, str]) -> LoggedRequest:
        """Send one request on a connection of its own."""
        began = time.monotonic()
        with closing(http.client.HTTPConnection(self._authority, timeout=_PATIENCE_SECONDS)) as connection:
            connection.request(method, path, headers=dict(fields))
            answer = connection.getresponse()
            ended = time.monotonic()
            late = self._late(began, ended)
            return LoggedRequest(answer.status, dict(answer.getheaders()), answer.read(), ended - began, late)

    def ask_again(self, path: str, method: str, fields: Mapping[str, str]) -> list[LoggedRequest]:
        """Ask, and again when refusals say so, until there is something else; give all that was told."""
        told = [self.ask(path, method, fields)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while told[-1].status in REFUSALS and time.monotonic() < deadline:
            self._ended.wait(int(told[-1].headers["Retry-After"]))
            told.append(self.ask(path, method, fields))
        return told

    def _late(self, began: float, ended: float) -> float:
        """The slowest answer of those that were given meanwhile."""
        lives = tuple(self._lives)
        return max((seconds for at, seconds in lives if at + seconds > began and at < ended), default=0.0)

    def _live(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            began = time.monotonic()
            with closing(http.client.HTTPConnection(self._authority)) as connection:
                connection.request("GET", "/live")
                connection.getresponse().read()
            self._lives.append((began, time.monotonic() - began))
