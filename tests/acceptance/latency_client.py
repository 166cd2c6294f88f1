"""A client that measures the time to first byte of each response, and the delay that a busy machine adds."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.standstills import Standstills

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROMISED_SECONDS = 3.0
_MOST_DELAY_SECONDS = 10 * PROMISED_SECONDS  # a service that also answers /live late is at fault
_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.05
REFUSALS = frozenset({502, 503, 504})


@attrs.frozen
class TimedResponse:
    """A response and its timing.

    Args:
        seconds: until the first byte.
        delay: the part of it that a busy machine explains, in seconds.
        standstill: the part of it for which the machine stood still.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)
    seconds: float
    delay: float
    standstill: float

    def check_time(self) -> None:
        """Fail if the first byte came later than 3 s plus the machine's delay."""
        allowed = min(self.delay, _MOST_DELAY_SECONDS) + self.standstill
        assert self.seconds < PROMISED_SECONDS + allowed, self

    def check_refusal(self) -> None:
        """Fail unless it is problem details with a 5xx status and Retry-After."""
        assert self.status in REFUSALS, self
        assert int(self.headers["Retry-After"]) > 0
        assert self.headers["Content-Type"] == "application/problem+json", self


class Client:
    """Sends requests and measures them.

    Args:
        authority: host and port of the service.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._lives: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._standstills = Standstills()
        self._thread = threading.Thread(target=self._live)

    @contextmanager
    def measuring(self) -> Iterator[Client]:
        """Request ``/live`` continuously while the block runs, to measure the machine's delay."""
        self._thread.start()
        try:
            with self._standstills.measured():
                yield self
        finally:
            self._ended.set()
            self._thread.join()

    def request(self, path: str, method: str, fields: Mapping[str, str]) -> TimedResponse:
        """Send one request on a new connection."""
        began = time.monotonic()
        with closing(http.client.HTTPConnection(self._authority, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request(method, path, headers=dict(fields))
            answer = connection.getresponse()
            ended = time.monotonic()
            delay, standstill = self._delay(began, ended), self._standstills.seconds_since(began)
            return TimedResponse(
                answer.status, dict(answer.getheaders()), answer.read(), ended - began, delay, standstill
            )

    def request_until_served(self, path: str, method: str, fields: Mapping[str, str]) -> list[TimedResponse]:
        """Repeat a request as Retry-After says until it is not refused; return all responses."""
        responses = [self.request(path, method, fields)]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while responses[-1].status in REFUSALS and time.monotonic() < deadline:
            self._ended.wait(int(responses[-1].headers["Retry-After"]))
            responses.append(self.request(path, method, fields))
        return responses

    def _delay(self, began: float, ended: float) -> float:
        """Return the longest time of those requests of ``/live`` that overlap an interval."""
        lives = tuple(self._lives)
        return max((seconds for at, seconds in lives if at + seconds > began and at < ended), default=0.0)

    def _live(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            began = time.monotonic()
            with closing(http.client.HTTPConnection(self._authority)) as connection:
                connection.request("GET", "/live")
                connection.getresponse().read()
            self._lives.append((began, time.monotonic() - began))
