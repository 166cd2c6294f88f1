"""The sources of the keys that sign tokens: a file, or a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
from twisted.logger import Logger

from image_service.common.concurrency.rate_limiter import RateLimiter
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import Unavailable
from image_service.jobs.tenants.keys import KeySet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.files.reloaded import Reloaded
    from image_service.jobs.tenants.keys import SigningKey

REFRESH_SECONDS = 60.0
_RETRY_AFTER_SECONDS = 5


class KeySource(Protocol):
    """Finds the keys of tokens."""

    async def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; None: there is none.

        Raises:
            Unavailable: the keys could never be fetched.
        """


@attrs.frozen
class FileKeys:
    """The keys of a file, which is read again when it has changed."""

    _file: Reloaded[KeySet]

    async def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token."""
        return self._file.get().find(key_id, algorithm)


class FetchedKeys:
    """The keys of a URL; those of the last fetch that succeeded.

    The owner calls ``refresh`` at the start, and every `REFRESH_SECONDS`. A key that is not known causes
    a fetch at once: `RateLimiter` admits five of these fetches, and then one a minute, for any number of
    requests.

    Args:
        fetch: returns the document; raises Unavailable.
    """

    _log = Logger()

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: IReactorTime) -> None:
        self._fetch = fetch
        self._limiter: RateLimiter[str] = RateLimiter(clock)
        self._flights: SingleFlight[str, None] = SingleFlight()
        self._keys: KeySet | None = None
        self._fault = ""

    async def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key of a token; fetches once more if it is not known, and the limit admits that."""
        if self._keys is not None and (known := self._keys.find(key_id, algorithm)):
            return known
        await self._flights.join("", self._fetch_if_admitted)
        if self._keys is None:
            raise Unavailable(
                "the keys that sign tokens could not be fetched yet", retry_after_seconds=_RETRY_AFTER_SECONDS
            )
        return self._keys.find(key_id, algorithm)

    async def refresh(self) -> None:
        """Fetch the keys; if that fails, log it once and keep the previous keys."""
        await self._flights.join("", self._fetch_and_keep)

    async def _fetch_if_admitted(self) -> None:
        if self._limiter.admit("") is not None:
            await self._fetch_and_keep()

    async def _fetch_and_keep(self) -> None:
        try:
            self._keys = KeySet.parse(await self._fetch())
        except (Unavailable, ValueError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                self._log.error("JWT_KEYS_URL: {fault}; the previous keys stay in use", fault=self._fault)
            return
        if self._fault:
            self._fault = ""
            self._log.info("JWT_KEYS_URL: the keys can be fetched again")
