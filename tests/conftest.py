"""Rules for every test: the reactor is left as it was found, and no failure goes unnoticed.

pytest-twisted, unlike trial, ignores logged Failures, unhandled errors of Deferreds, pending delayed calls
and open sockets. The guard here fails the test that leaves them. A test without a reactor pays a few
microseconds and one small garbage collection.

The summary of tests that were skipped for a missing client is here too: with xdist, the process that reports
loads no other ``conftest.py``; and the choice of tests by their markers.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections import defaultdict
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import attrgetter, itemgetter
from threading import Event, Thread
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from hypothesis import HealthCheck, settings
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, LogPublisher, formatEvent, globalLogBeginner, globalLogPublisher
from zope.interface import implementer

from image_service.app.reactor import get_reactor
from image_service.common.programs import interruptible, sandbox
from image_service.common.programs.isolation import works
from tests.acceptance.clients import MISSING
from tests.postgres import PostgresServer, running_postgres
from tests.pytwisted import blockon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.logger import LogEvent
    from twisted.python.failure import Failure

# Before twisted.internet.testing, which declares interfaces of Mapping: sushy cannot be imported after that.
import_module("sushy")

# Collecting garbage takes a fifth of the time in which tests are collected, and there is hardly any.
gc.disable()

# jsonschema would build its 38 grammars, three seconds in each process, for formats that no schema here has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # the import system's own way to refuse it

settings.register_profile(
    "project",
    max_examples=30,  # the profile `search` tries more, in `make soak`
    deadline=None,  # time is never a test's verdict
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,  # no change is refused for an example that chance has found
)
settings.register_profile("search", settings.get_profile("project"), max_examples=300, derandomize=False)
settings.load_profile("project")

LEFT_OUT = ("soak", "boot", "container", "load", "package", "systemd", "cluster")
WAITING = ("tests/replicas/", "tests/acceptance/", "tests/app/", "tests/jobs/", "tests/packaging/")
"""Folders whose tests wait for other processes most of the time. The longest module is in the first."""
SETTLE_SECONDS = 20.0  # a peer on loopback sees the close within a few turns, if the machine is not busy
_TURN_SECONDS = 0.01
LONGEST_ID = 300  # characters of a value in the name of a test


def pytest_collection_finish() -> None:
    """Enable the garbage collector for the tests."""
    gc.enable()


@implementer(ILogObserver)
@attrs.define
class LoggedFailures:
    """The failures logged since the test began, in order."""

    failures: list[Failure] = attrs.field(factory=list)

    def __call__(self, event: LogEvent) -> None:
        """Record a failure."""
        failure: Failure | None = event.get("log_failure")
        if failure is not None:
            self.failures.append(failure)

    def flush(self, *types: type[BaseException]) -> list[Failure]:
        """Remove and return the expected failures: those of the given types, or all."""
        gc.collect()  # an unhandled Deferred logs its error when it is collected
        expected = [failure for failure in self.failures if isinstance(failure.value, types or BaseException)]
        self.failures = [failure for failure in self.failures if failure not in expected]
        return expected


@pytest.fixture(scope="module", autouse=True)
def _heap_of_this_module() -> None:
    """Exclude objects of earlier modules from the guard's garbage collections.

    Modules, caches and pytest's reports grow with every test. Scanning them after each test cost more than
    the tests did.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _signals_of_a_terminal() -> None:
    """Handle the signals that nohup ignores, so that the programs of tests start with the defaults.

    A program inherits ignored signals, but no handlers. The process itself still outlives these signals.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _log_without_history() -> None:
    """Let Twisted forget what was logged: it keeps 65,536 events and all that they name until logging begins.

    Fixtures and failures were among these: 1 GB in each process at the end.
    """
    observer = cast("LogPublisher", globalLogBeginner._temporaryObserver)
    observer.removeObserver(globalLogBeginner._initialBuffer)


@pytest.fixture(scope="session", name="reactor")
def the_reactor(twisted_greenlet: object) -> EPollReactor:
    """Return the reactor that pytest-twisted runs: epoll, as under twistd."""
    del twisted_greenlet  # asked for only so that the reactor is installed
    installed = get_reactor()
    blockon(deferLater(installed, 0.0))
    # So that a process ends whose run of tests was killed: nobody stops the reactor then.
    installed.getThreadPool().threadFactory = cast("type[Thread]", partial(Thread, daemon=True))
    return installed


@pytest.fixture(autouse=True)
def logged_failures(reactor: EPollReactor) -> Iterator[LoggedFailures]:
    """Fail a test that leaves something behind; a test that expects logged failures flushes them."""
    before = _pending(reactor)
    logged = LoggedFailures()
    globalLogPublisher.addObserver(logged)
    yield logged
    left = _left_behind(reactor, before)
    gc.collect()
    globalLogPublisher.removeObserver(logged)
    problems = [f"left in the reactor: {item!r}" for item in left]
    problems += [f"logged failure: {failure.getTraceback()}" for failure in logged.failures]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """The messages that are logged."""
    found: list[str] = []

    def observe(event: LogEvent) -> None:
        found.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]  # a function is an observer too
    yield found
    globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]  # same


@pytest.fixture(params=["bwrap", "unshare", "none"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each isolation of programs; those that do not work here are skipped by name."""
    chosen: str = request.param
    if not works(chosen):
        pytest.skip(f"{chosen} does not work here")
    monkeypatch.setattr(sandbox, "find_isolation", lambda: chosen)
    monkeypatch.setattr(interruptible, "_has_warned", Event())
    return chosen


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run one PostgreSQL server for all tests of the process."""
    with running_postgres() as server:
        yield server


def _pending(reactor: EPollReactor) -> set[object]:
    readers, writers = reactor.getReaders(), reactor.getWriters()
    calls_in_threads = {
        f"call {number} in a thread" for number in range(len(reactor.getThreadPool().working))
    }
    return {*reactor.getDelayedCalls(), *readers, *writers, *calls_in_threads}


def _left_behind(reactor: EPollReactor, before: set[object]) -> set[object]:
    """Return what the test added to the reactor and what does not settle within a moment."""
    waited_seconds = 0.0
    while (left := _pending(reactor) - before) and waited_seconds < SETTLE_SECONDS:
        blockon(deferLater(reactor, _TURN_SECONDS))
        waited_seconds += _TURN_SECONDS
    return left


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of each of the markers, unless an expression of ``-m`` names it."""
    unnamed = [marker for marker in LEFT_OUT if marker not in config.option.markexpr]
    left_out = {item for item in items if any(map(item.get_closest_marker, unnamed))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        items[:] = _spread(items)


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Put the modules that wait for processes evenly among those that compute.

    The processes of xdist, of which each takes the next module, then use all cores from beginning to end.
    """
    waiting: list[list[pytest.Item]] = []
    computing: list[list[pytest.Item]] = []
    for _, tests in groupby(items, key=attrgetter("path")):
        module = list(tests)
        (waiting if module[0].nodeid.startswith(WAITING) else computing).append(module)
    waiting.sort(key=lambda module: [not module[0].nodeid.startswith(folder) for folder in WAITING])
    places = [
        (number / len(kind), tests) for kind in (waiting, computing) for number, tests in enumerate(kind)
    ]
    return [test for _, tests in sorted(places, key=itemgetter(0)) for test in tests]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long values by their argument: each process keeps several copies of each test's name.

    Compressed ones too: processes that make them at another second, or by another library, would disagree.
    """
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        return f"long {argname}"
    if isinstance(val, bytes) and val.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return f"compressed {argname}"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List each missing client, and the tests that were skipped for it."""
    left_out: dict[str, set[str]] = defaultdict(set)
    for report in terminalreporter.stats.get("skipped", []):
        _path, _line, reason = report.longrepr
        _, found, client = reason.partition(MISSING)
        if found:
            left_out[client].add(report.nodeid.partition("[")[0])
    if left_out:
        terminalreporter.section("missing clients")
    for client, tests in sorted(left_out.items()):
        terminalreporter.line(f"{client}; left out for that:")
        terminalreporter.line("".join(f"    {test}\n" for test in sorted(tests)))
