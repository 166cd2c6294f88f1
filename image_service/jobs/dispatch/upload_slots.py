"""Upload slots: grants them to tenants in turn, and aborts slow uploads while other tenants wait."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.web_api.request_content import RequestContent

CHECK_SECONDS = 0.5
"""How often rates are measured while an upload waits."""
_MOST_OF_ATTEMPT = 2  # one, and one whose connection has broken without a sign
_RETRY_AFTER_SECONDS = 5


@attrs.define(eq=False)
class _Upload:
    tenant: str
    attempt: str
    content: RequestContent
    granted: Deferred[None] = attrs.field(factory=Deferred)


class UploadSlots:
    """Limits the uploads that are received at a time.

    A tenant has a share of the slots that leaves one to a tenant that comes next: half of them alone, a third
    beside another one. A slot that becomes free goes to the tenant with the fewest. While an upload
    waits, uploads below the least rate are aborted, the slowest first, of tenants that have more slots than
    the one that waits.

    Args:
        min_rate: bytes per second; 0: any.
    """

    def __init__(self, slots: int, min_rate: int, clock: IReactorTime) -> None:
        self._slots = slots
        self._min_rate = min_rate
        self._clock = clock
        self._receiving: dict[_Upload, None] = {}
        self._waiting: dict[_Upload, None] = {}  # the oldest first
        self._of_attempt: Counter[str] = Counter()
        self._check: IDelayedCall | None = None

    @asynccontextmanager
    async def slot(self, tenant: str, attempt: str, content: RequestContent) -> AsyncIterator[None]:
        """Hold a slot; wait for one first.

        Raises:
            Unavailable: the attempt sends `_MOST_OF_ATTEMPT` files already.
        """
        if self._of_attempt[attempt] >= _MOST_OF_ATTEMPT:
            detail = f"the attempt of this job sends {_MOST_OF_ATTEMPT} files already"
            raise Unavailable(detail, retry_after_seconds=_RETRY_AFTER_SECONDS)
        upload = _Upload(tenant, attempt, content)
        self._of_attempt[attempt] += 1
        self._waiting[upload] = None
        try:
            self._grant()
            await upload.granted
            yield
        finally:
            self._waiting.pop(upload, None)
            self._receiving.pop(upload, None)
            self._of_attempt -= Counter([attempt])
            self._grant()

    def _grant(self) -> None:
        """Grant free slots, and check rates as long as uploads wait."""
        while len(self._receiving) < self._slots and (upload := self._next()) is not None:
            del self._waiting[upload]
            self._receiving[upload] = None
            upload.granted.callback(None)
        if self._waiting and self._check is None:
            self._check = self._clock.callLater(CHECK_SECONDS, self._abort_slow)
        elif not self._waiting and self._check is not None:
            self._check.cancel()
            self._check = None

    def _next(self) -> _Upload | None:
        """Return the oldest upload of the tenant with the fewest slots; None: none may have one."""
        held = self._held()
        share = max(1, self._slots // (1 + len({each.tenant for each in (*self._receiving, *self._waiting)})))
        first = min(self._waiting, key=lambda upload: held[upload.tenant], default=None)
        return first if first is not None and held[first.tenant] < share else None

    def _abort_slow(self) -> None:
        """Abort one slow upload, the slowest first, for each that waits and whose tenant has fewer slots."""
        now = self._clock.seconds()
        self._check = self._clock.callLater(CHECK_SECONDS, self._abort_slow)
        rates = [(upload.content.rate.sample(now), upload) for upload in self._receiving]
        slow = [(rate, upload) for rate, upload in rates if rate is not None and rate < self._min_rate]
        slow.sort(key=lambda pair: pair[0])
        held = self._held()
        for waiting in tuple(self._waiting):
            for pair in slow:
                upload = pair[1]
                if held[upload.tenant] > held[waiting.tenant]:
                    slow.remove(pair)
                    held[upload.tenant] -= 1
                    upload.content.abort(f"slower than {self._min_rate} bytes/s while other uploads waited")
                    break

    def _held(self) -> Counter[str]:
        return Counter(upload.tenant for upload in self._receiving)
