"""The guard of tests/conftest.py: each kind of leftover fails a test, in a pytest run of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from twisted.logger import Logger

from tests.variants import soaked

ROOT = Path(__file__).resolve().parents[1]

LEAVING = {
    "delayed_call": "reactor.callLater(60, print)",
    "socket": "reactor.listenTCP(0, Factory(), interface='127.0.0.1')",
    "logged_failure": "Logger().failure('x', Failure(ValueError()))",
    "unhandled_error": "fail(ValueError())",
    "unhandled_error_in_a_cycle": "d = fail(ValueError()); d.me = d",
}
TIDY = {
    "nothing": "pass",
    "a_call_that_comes_soon": "reactor.callLater(0.01, print)",
    "flushed": "Logger().failure('x', Failure(ValueError())); assert logged_failures.flush(ValueError)",
}
HEAD = """
from twisted.internet.defer import fail
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from tests import conftest

conftest.SETTLE_SECONDS = 1.0
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is told of each at its end, by one of the processes that all tests are shared out to."""
    directory = tmp_path_factory.mktemp("guarded")
    bodies = {**LEAVING, **TIDY}.items()
    tests = (f"\ndef test_{name}(reactor, logged_failures):\n    {body}\n" for name, body in bodies)
    (directory / "test_it.py").write_text(HEAD + "".join(tests))
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "-rpE", *plugins, "test_it.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout


@pytest.mark.parametrize("name", LEAVING)
def test_leftovers_in_reactor_or_log_fail_the_test(told: str, name: str) -> None:
    assert re.search(
        rf"^ERROR \S+::test_{name} - Failed: (left in the reactor|logged failure)", told, re.MULTILINE
    )


@pytest.mark.parametrize("name", TIDY)
def test_expected_failures_and_settling_reactor_pass(told: str, name: str) -> None:
    assert re.findall(rf"^(\w+) \S+::test_{name}\b", told, re.MULTILINE) == ["PASSED"]


def test_logged_object_is_freed() -> None:
    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing)
    Logger().info("a thing", thing=thing)
    del thing
    assert reference() is None


@pytest.mark.parametrize(
    ("expression", "ran"), [("", ["quick"]), soaked("not other", ["quick"]), ("soak", ["long"])]
)
def test_soak_runs_only_if_the_expression_of_markers_names_it(
    expression: str, ran: list[str], tmp_path: Path
) -> None:
    test = "import pytest\ndef test_quick(): pass\n@pytest.mark.soak\ndef test_long(): pass\n"
    (tmp_path / "test_it.py").write_text(test)
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *plugins, "-m", expression, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"::test_(\w+) PASSED", result.stdout) == ran
