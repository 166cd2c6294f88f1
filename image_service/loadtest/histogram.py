"""How long things took: counts in buckets whose width grows with the value.

Each power of two is divided into equal buckets, so that a value is known to within one part in 128 from
microseconds to hours, in a few KiB however many values there are. (HdrHistogram has the same idea; its Python
package would be a dependency with a C extension for what are thirty lines.)
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS = 7
_EXACT = 2 << _BITS
"""Values below this have a bucket each."""
_UNITS = 1_000_000  # microseconds in a second


class Histogram:
    """Durations, counted. Whole microseconds are told apart; what is shorter counts as the next of them."""

    __slots__ = ("_buckets", "_largest", "_sum")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._largest = 0.0
        self._sum = 0.0

    def record(self, seconds: float) -> None:
        """Count a duration; a negative one, of a clock that was set back, as none."""
        self._buckets[_bucket(math.ceil(max(seconds, 0) * _UNITS))] += 1
        self._sum += seconds
        self._largest = max(self._largest, seconds)

    @property
    def count(self) -> int:
        """How many there are."""
        return self._buckets.total()

    @property
    def largest(self) -> float:
        """The longest in seconds, exactly; 0 where there is none."""
        return self._largest

    @property
    def mean(self) -> float:
        """Seconds; 0 where there is none."""
        return self._sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Tell what a share of the durations does not exceed.

        Args:
            percent: more than 0, at most 100.

        Returns:
            seconds, at most one part in 128 more than the duration at that rank, and never less; 0 where
            there is none.
        """
        rank = math.ceil(self.count * percent / 100)
        reached = 0
        for bucket in sorted(self._buckets):
            reached += self._buckets[bucket]
            if reached >= rank:
                return min(_last(bucket) / _UNITS, self._largest)
        return 0.0

    def shares(self) -> Iterator[tuple[float, float]]:
        """Give the whole distribution.

        Yields:
            seconds, and the share of durations (0 to 1) that do not exceed them, both rising.
        """
        count, reached = self.count, 0
        for bucket in sorted(self._buckets):
            reached += self._buckets[bucket]
            yield min(_last(bucket) / _UNITS, self._largest), reached / count


def _bucket(value: int) -> int:
    """The number of a value's bucket: as the values go, so do the numbers."""
    shift = max(value.bit_length() - _BITS - 1, 0)
    return (shift << _BITS) + (value >> shift)


def _last(bucket: int) -> int:
    """The largest value of a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    return (((bucket & (1 << _BITS) - 1) + (1 << _BITS) + 1) << shift) - 1
