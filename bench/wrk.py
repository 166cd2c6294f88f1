"""wrk, which drives a server with as many requests as it answers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import attrs

from bench.servers import program

_SCRIPT = Path(__file__).with_name("wrk.lua")
_SUMMARY = re.compile(r"^SUMMARY ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)$", re.MULTILINE)


@attrs.frozen
class Traffic:
    """What was answered.

    Args:
        requests: answered to their end.
        bytes: received, with heads, and with answers that were under way at the end.
        seconds: that it took.
    """

    requests: int
    bytes: int
    seconds: float


def run_wrk(  # noqa: PLR0913 - what a range is has defaults
    url: str,
    connections: int,
    seconds: int,
    *,
    range_bytes: int | None = None,
    file_bytes: int = 0,
    first_byte: int = 0,
) -> Traffic:
    """Send requests on kept-alive connections, the next as soon as one is answered.

    Args:
        url: of the image.
        connections: at a time.
        seconds: how long.
        range_bytes: of each range, at random multiples of it; None: the whole image.
        file_bytes: size of the image; only ranges need it.
        first_byte: of the part of the image that ranges are of.

    Returns:
        what was answered.

    Raises:
        SystemExit: a connection failed, or an answer was none of 2xx.
    """
    command = [program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s"]
    environment = {**os.environ, "FILE_BYTES": str(file_bytes), "FIRST_BYTE": str(first_byte)}
    if range_bytes is not None:
        environment["RANGE_BYTES"] = str(range_bytes)
    command += ["-s", str(_SCRIPT), url]
    result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    summary = _SUMMARY.search(result.stdout)
    if summary is None or int(summary[4]):
        raise SystemExit(f"wrk failed at {url}:\n{result.stdout}{result.stderr}")
    return Traffic(int(summary[1]), int(summary[2]), int(summary[3]) / 1e6)
