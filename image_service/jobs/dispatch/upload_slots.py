"""Slots of uploads and large requests: tenants get them in turn; slow ones are aborted while others wait."""

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

    from image_service.server.web_api.request_content import ReceivedContent

CHECK_SECONDS = 0.5
"""How often rates are measured while an upload waits."""
_MOST_OF_ATTEMPT = 2  # one, and one whose connection has broken without a sign
_RETRY_AFTER_SECONDS = 5


@attrs.define(eq=False)
class _Upload:
    tenant: str
    source: str
    content: ReceivedContent
    granted: Deferred[None] = attrs.field(factory=Deferred)


class UploadSlots:
    """Limits the uploads that are received at a time.

    A tenant has a share of the slots that leaves one to a tenant that comes next: half of them alone, a third
    beside another one. A slot that becomes free goes to the tenant with the fewest, of several to the one
    that got its latest slot first. While an upload waits, uploads below the least rate are aborted, the
    slowest first: those of tenants with more slots, and those of other attempts of the same tenant.

    Args:
        min_rate: bytes per second; 0: any.
        most_of_source: uploads of an attempt, or of what else sends them, that hold slots or wait for them.
    """

    def __init__(
        self, slots: int, min_rate: int, clock: IReactorTime, *, most_of_source: int = _MOST_OF_ATTEMPT
    ) -> None:
        self._slots = slots
        self._min_rate = min_rate
        self._clock = clock
        self._most_of_source = most_of_source
        self._receiving: dict[_Upload, None] = {}
        self._waiting: dict[_Upload, None] = {}  # the oldest first
        self._of_source: Counter[str] = Counter()
        self._granted: dict[str, int] = {}  # the number of its latest grant, of each tenant
        self._check: IDelayedCall | None = None

    @asynccontextmanager
    async def slot(self, tenant: str, source: str, content: ReceivedContent) -> AsyncIterator[None]:
        """Hold a slot; wait for one first.

        Args:
            source: its attempt of a job, or its tenant.

        Raises:
            Unavailable: the source sends as many already as it may.
        """
        if self._of_source[source] >= self._most_of_source:
            detail = f"this attempt of a job, or tenant, sends {self._most_of_source} already"
            raise Unavailable(detail, retry_after_seconds=_RETRY_AFTER_SECONDS)
        upload = _Upload(tenant, source, content)
        self._of_source[source] += 1
        self._waiting[upload] = None
        try:
            self._grant()
            await upload.granted
            yield
        finally:
            self._waiting.pop(upload, None)
            self._receiving.pop(upload, None)
            self._of_source -= Counter([source])
            self._grant()
            if not self._receiving and not self._waiting:
                self._granted.clear()

    def _grant(self) -> None:
        """Grant free slots, and check rates as long as uploads wait."""
        while len(self._receiving) < self._slots and (upload := self._next()) is not None:
            del self._waiting[upload]
            self._receiving[upload] = None
            self._granted[upload.tenant] = max(self._granted.values(), default=0) + 1
            upload.granted.callback(None)
        if self._waiting and self._check is None:
            self._check = self._clock.callLater(CHECK_SECONDS, self._abort_slow)
        elif not self._waiting and self._check is not None:
            self._check.cancel()
            self._check = None

    def _next(self) -> _Upload | None:
        """Return an upload of the tenant whose turn it is; None: none may have a slot.

        It is of the source with the fewest slots, of several the oldest.
        """
        held, of_source = self._held(), Counter(upload.source for upload in self._receiving)
        share = max(1, self._slots // (1 + len({each.tenant for each in (*self._receiving, *self._waiting)})))
        first = min(
            self._waiting,
            key=lambda upload: (
                held[upload.tenant],
                self._granted.get(upload.tenant, 0),
                of_source[upload.source],
            ),
            default=None,
        )
        return first if first is not None and held[first.tenant] < share else None

    def _abort_slow(self) -> None:
        """Abort one slow upload, the slowest first, for each upload that waits.

        It belongs to a tenant with more slots, or to another attempt of the same tenant: a worker whose
        upload waits takes no job of other tenants.
        """
        now = self._clock.seconds()
        self._check = self._clock.callLater(CHECK_SECONDS, self._abort_slow)
        rates = [(upload.content.rate.sample(now), upload) for upload in self._receiving]
        slow = [(rate, upload) for rate, upload in rates if rate is not None and rate < self._min_rate]
        slow.sort(key=lambda pair: pair[0])
        held = self._held()
        for waiting in tuple(self._waiting):
            for pair in slow:
                upload = pair[1]
                is_of_other_attempt = upload.tenant == waiting.tenant and upload.source != waiting.source
                if is_of_other_attempt or held[upload.tenant] > held[waiting.tenant]:
                    slow.remove(pair)
                    held[upload.tenant] -= 1
                    upload.content.abort(f"slower than {self._min_rate} bytes/s while other uploads waited")
                    break

    def _held(self) -> Counter[str]:
        return Counter(upload.tenant for upload in self._receiving)
