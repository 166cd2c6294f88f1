"""The guard itself: each way to leave something behind fails a test, in a run of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LEAVING = {
    "delayed call": "reactor.callLater(60, print)",
    "socket": "reactor.listenTCP(0, Factory(), interface='127.0.0.1')",
    "logged failure": "Logger().failure('x', Failure(ValueError()))",
    "unhandled error": "fail(ValueError())",
    "unhandled error in a cycle": "d = fail(ValueError()); d.me = d",
}
TIDY = {
    "nothing": "pass",
    "a call that comes soon": "reactor.callLater(0.01, print)",
    "flushed": "Logger().failure('x', Failure(ValueError())); assert logged_failures.flush(ValueError)",
}
HEAD = """
from twisted.internet.defer import fail
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
"""


def run(tmp_path: Path, statement: str) -> subprocess.CompletedProcess[str]:
    test = tmp_path / "test_it.py"
    test.write_text(f"{HEAD}\ndef test_it(reactor, logged_failures):\n    {statement}\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("statement", LEAVING.values(), ids=LEAVING)
def test_what_is_left_behind_fails_the_test(tmp_path: Path, statement: str) -> None:
    result = run(tmp_path, statement)
    assert result.returncode == 1, result.stdout
    assert "left in the reactor" in result.stdout or "logged failure" in result.stdout


@pytest.mark.parametrize("statement", TIDY.values(), ids=TIDY)
def test_what_goes_away_by_itself_or_is_expected_does_not(tmp_path: Path, statement: str) -> None:
    result = run(tmp_path, statement)
    assert result.returncode == 0, result.stdout
