"""Metrics of the process: CPU time, memory, descriptors."""

from __future__ import annotations

import time

from prometheus_client import ProcessCollector


class ProcessMetrics(ProcessCollector):
    """The client library's collector, made to work where systemd's `ProcSubset=pid` hides `/proc/stat`.

    The library reads that file for the boot time only, and without it shows nothing.
    """

    def _boot_time(self) -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
