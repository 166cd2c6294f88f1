"""Pairs of ways to do the same work."""

from __future__ import annotations

import sys
from functools import partial

from bench.pairs import Way, run

LOOP = "import time\nwhile time.process_time() < 0.2: pass"


def test_cpu_time_of_a_process_whose_parent_does_not_wait_for_it_counts() -> None:
    way = Way("sh", partial(run, "sh", "-c", f"'{sys.executable}' -c '{LOOP}' &"))
    assert way.measure()[1] >= 0.2
