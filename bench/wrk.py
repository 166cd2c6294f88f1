"""wrk, which sends as many requests as a server responds to."""

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
    """The traffic of a measurement.

    Args:
        requests: complete responses.
        bytes: received, with heads and incomplete responses.
        seconds: its length.
    """

    requests: int
    bytes: int
    seconds: float


class NothingReceived(SystemExit):
    """A server sent nothing: it is broken, or the machine is too busy for so few seconds."""


def run_wrk(  # noqa: PLR0913 - what a range is has defaults
    url: str,
    connections: int,
    seconds: int,
    *,
    range_bytes: int | None = None,
    file_bytes: int = 0,
    first_byte: int = 0,
) -> Traffic:
    """Send requests on kept-alive connections, each when the last response is complete.

    Args:
        url: of the image.
        connections: their number.
        seconds: how long.
        range_bytes: of each range, at random multiples of it; None: the whole image.
        file_bytes: size of the image; only ranges need it.
        first_byte: ranges begin here or later.

    Raises:
        SystemExit: a connection failed, or a response was not 2xx.
        NothingReceived: no byte came.
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
    if not int(summary[2]):
        raise NothingReceived(f"nothing was received in {seconds} s from {url}")
    return Traffic(int(summary[1]), int(summary[2]), int(summary[3]) / 1e6)
