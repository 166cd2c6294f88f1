"""A histogram of durations in buckets whose width grows with the value.

Each power of two is divided into equal buckets, so the error is at most one part in 128 from microseconds to
hours, in a few KiB for any number of values. (HdrHistogram does the same with a C extension.)
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


class DurationHistogram:
    """Counts of durations; each is rounded up to whole microseconds."""

    __slots__ = ("_buckets", "_largest", "_sum")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._largest = 0.0
        self._sum = 0.0

    def record(self, seconds: float) -> None:
        """Count a duration; a negative one, of a clock that was set back, as 0."""
        value = math.ceil(max(seconds, 0) * _UNITS)
        shift = max(value.bit_length() - _BITS - 1, 0)
        self._buckets[(shift << _BITS) + (value >> shift)] += 1
        self._sum += seconds
        self._largest = max(self._largest, seconds)

    @property
    def count(self) -> int:
        """The number of durations."""
        return self._buckets.total()

    @property
    def largest(self) -> float:
        """The longest duration in seconds, exact; 0 if there is none."""
        return self._largest

    @property
    def mean(self) -> float:
        """The mean in seconds; 0 if there is none."""
        return self._sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the duration at a rank in seconds, at most one part in 128 too long; 0 if there is none.

        Args:
            percent: more than 0, at most 100.
        """
        rank = math.ceil(self.count * percent / 100)
        reached = 0
        for bucket in sorted(self._buckets):
            reached += self._buckets[bucket]
            if reached >= rank:
                return min(_last(bucket) / _UNITS, self._largest)
        return 0.0

    def shares(self) -> Iterator[tuple[float, float]]:
        """Yield seconds and the share of durations (0 to 1) that do not exceed them, both increasing."""
        count, reached = self.count, 0
        for bucket in sorted(self._buckets):
            reached += self._buckets[bucket]
            yield min(_last(bucket) / _UNITS, self._largest), reached / count


def _last(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    return (((bucket & (1 << _BITS) - 1) + (1 << _BITS) + 1) << shift) - 1
