from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from image_service.concurrency.threads import NICENESS, run_at_low_priority


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_low_priority_is_that_of_the_thread_alone() -> None:
    own = priority()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_at_low_priority, priority).result() == max(own, NICENESS)
    assert priority() == own
