"""Which granules to fetch ahead of readers: more and more, as long as a reader goes on sequentially. Pure."""

from __future__ import annotations

from collections import OrderedDict

import attrs

MAX_AHEAD = 16
"""Granules ahead of one reader."""
MAX_SPAN = 8
"""Granules of one fetch."""
MAX_READERS = 1024


@attrs.frozen
class _Reader:
    """A reader that may go on at a granule.

    Args:
        stop: the granule behind those fetched ahead.
        window: how many are to be ahead of it.
    """

    stop: int
    window: int


class ReadAhead:
    """The readers of one file, told apart by where they are."""

    def __init__(self, granules: int) -> None:
        self._granules = granules
        self._readers: OrderedDict[int, _Reader] = OrderedDict()  # by the granule where each goes on

    def begin(self, granule: int) -> range:
        """Record that a reader has come to a granule; return the granules to fetch ahead of it."""
        reader = self._readers.pop(granule, None)
        behind = granule + 1
        if reader is None and behind in self._readers:  # another one is reading the granule
            return range(0)
        if reader is None:
            reader = _Reader(behind, 0)
            ahead = range(behind, behind)
        else:
            window = min(MAX_AHEAD, max(1, 2 * reader.window))
            start = max(behind, reader.stop)
            stop = min(self._granules, behind + window)
            if start - behind > window // 2:  # enough is under way for a whole span to be next
                stop = start
            ahead = range(start, max(start, stop))
            reader = _Reader(ahead.stop, window)
        self._readers[behind] = reader
        if len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)
        return ahead
