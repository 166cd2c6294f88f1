"""A page cache that is cold until a test lets the disk answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from image_service.common.files.page_cache import PageCache

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.base_file import BaseFile


@attrs.frozen
class Load:
    """A read that was requested from the disk."""

    offset: int
    length: int
    done: Deferred[None]


class SlowDisk(PageCache):
    """A page cache that holds what the disk has delivered, and nothing else.

    Args:
        reactor: the one that runs.
    """

    def __init__(self, reactor: EPollReactor) -> None:
        super().__init__(reactor, ThreadPool(0, 1))
        self.loads: list[Load] = []
        self.asked = 0
        self._warm_bytes = 0

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """As far as the disk has delivered."""
        del file
        self.asked += 1
        return max(0, min(length, self._warm_bytes - offset))

    def read_into(self, buffer: memoryview, file: BaseFile, offset: int) -> int | None:
        """Read as far as the disk has delivered."""
        self.asked += 1
        length = min(len(buffer), self._warm_bytes - offset)
        return super().read_into(buffer[:length], file, offset) if length > 0 else None

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Request a read."""
        del file
        self.loads.append(Load(offset, length, Deferred()))
        await self.loads[-1].done

    def answer(self) -> int:
        """Deliver the first read requested; return the offset up to which the disk has delivered."""
        load = self.loads.pop(0)
        self._warm_bytes = load.offset + load.length
        load.done.callback(None)
        return self._warm_bytes
