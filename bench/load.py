"""The load test as a client of the benchmark: ``image-service loadtest`` in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    LoadReport: TypeAlias = dict[str, Any]
    """As docs/loadtest.md describes ``report.json``."""


@attrs.frozen
class LoadTestProcess:
    """A running load test."""

    _process: subprocess.Popen[bytes]
    _directory: Path

    def interrupt(self) -> None:
        """Stop the load test early; it writes its report."""
        self._process.send_signal(signal.SIGINT)

    def read_report(self) -> LoadReport:
        """Wait for the end, and return the report; wrong bytes end the benchmark."""
        self._process.wait()
        report: LoadReport = json.loads((self._directory / "report.json").read_text())
        if report["verification"]["faults"]:
            raise SystemExit(f"wrong responses: {report['verification']}")
        return report


@contextmanager
def load_test(url: str, directory: Path, *arguments: str) -> Iterator[LoadTestProcess]:
    """Run a load test of the image at `url`, whose report goes to `directory`, during the block."""
    command = [sys.executable, "-m", "image_service.cli", "loadtest", url, f"--report={directory}"]
    with subprocess.Popen(
        [*command, "--insecure", "--check=0", *arguments], stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield LoadTestProcess(process, directory)
        finally:
            process.kill()


def run_load_test(url: str, directory: Path, *arguments: str) -> LoadReport:
    """Run a load test to its end, and return its report."""
    with load_test(url, directory, *arguments) as process:
        return process.read_report()
