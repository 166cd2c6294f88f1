"""A real Prometheus, as a process, with the rules of `conf/`; a minute of the rules lasts a second."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.recorded import RULES
from tests.acceptance.service import fetch
from tests.acceptance.tenants import wait_for
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_SECONDS = 200
SECONDS = {"m": 1, "h": 60, "d": 24 * 60}
"""The durations here of a minute, an hour and a day of the rules."""


def shortened(rules: str) -> str:
    """Return rules whose ranges and times to wait are a sixtieth."""

    def shorten(duration: re.Match[str]) -> str:
        return f"{duration[1]}{int(duration[2]) * SECONDS[duration[3]]}s"

    return re.sub(r"(\[|for: )(\d+)([mhd])\b", shorten, rules)


@attrs.frozen
class Prometheus:
    """A running Prometheus."""

    url: str

    def ask(self, path: str) -> Any:
        answer = fetch(f"{self.url}/api/v1/{path}")
        assert answer.status == 200, answer
        return json.loads(answer.body)["data"]

    def firing(self) -> dict[tuple[str, str], dict[str, str]]:
        """Return the annotations of each alert that fires, by its name and severity."""
        return {
            (alert["labels"]["alertname"], alert["labels"]["severity"]): alert["annotations"]
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def wait_until_firing(self, name: str, severity: str) -> dict[str, str]:
        """Wait for an alert; return its annotations."""
        wait_for(lambda: (name, severity) in self.firing(), PATIENCE_SECONDS)
        return self.firing()[name, severity]


@contextmanager
def scraping(directory: Path, target: str, **options: object) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a target and evaluates the shortened rules, until the block ends.

    Args:
        directory: a writable one.
        target: host and port.
        options: more of the scrape.
    """
    address = f"127.0.0.1:{free_port()}"
    (directory / "rules.yaml").write_text(shortened(RULES.read_text()))
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "images", "static_configs": [{"targets": [target]}], **options}],
    }
    file = directory / "prometheus.json"
    file.write_text(json.dumps(configuration))
    run_client("promtool", "check", "config", file)
    command = [
        needs_client("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, cwd=directory, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(lambda: is_up(f"http://{address}"), PATIENCE_SECONDS)
            yield Prometheus(f"http://{address}")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()


def is_up(url: str) -> bool:
    try:
        return fetch(f"{url}/-/ready").status == 200
    except ConnectionRefusedError:
        return False
