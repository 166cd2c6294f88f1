"""The engine below Twisted's reactor on asyncio, in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests import forks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


def test_job_outlives_the_engine_that_handed_it_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.jobs.engine.role", str(tmp_path)]
    finished = forks.run(command)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(finished.stdout) == {
        "failures": True,
        "restarts": 1,
        "accepted": True,
        "calls": [
            ["begin"],
            ["act", "fetch"],
            ["queue_job", "customize", 1],
            ["finish_job", "customize"],
            ["finish"],
        ],
    }
