"""Runs a load test from parsed options, and writes its reports."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from twisted.internet.defer import Deferred

from image_service.common.command_line.messages import tell
from image_service.common.http.tls import client_context
from image_service.tools.loadtest.infra_envs import RegistrationError, registered
from image_service.tools.loadtest.options import OptionsError, parse_options
from image_service.tools.loadtest.reports.page import render_page
from image_service.tools.loadtest.reports.report import Report
from image_service.tools.loadtest.reports.text import render_interval, render_text
from image_service.tools.loadtest.traffic.dialer import Dialer, find_addresses
from image_service.tools.loadtest.traffic.run import Run
from image_service.tools.loadtest.traffic.tls import https_policy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twisted.python.failure import Failure

    from image_service.tools.loadtest.options import LoadTestOptions
    from image_service.tools.loadtest.traffic.counters import Interval
    from image_service.tools.loadtest.traffic.objectives import Objective
    from image_service.tools.loadtest.traffic.plan import Plan

EXIT_FAILED = 1
EXIT_USAGE = 2
_OWN_DESCRIPTORS = 64
"""Open in this process in addition to its connections."""


def run_command(
    arguments: argparse.Namespace,
    token: str | None,
    reactor: Any,  # noqa: ANN401 - a module
    version: str,
) -> int:
    """Run a load test and write its reports.

    Args:
        arguments: as ``image-service loadtest`` declares them.
        token: of the API that registers infra-envs, if it needs one.
        reactor: the reactor, which has not run yet.

    Returns:
        exit status: 0; 1, an objective missed or a verification failed; 2, the command line is invalid.

    Raises:
        OSError: the report cannot be written.
    """
    try:
        options = parse_options(arguments)
        raise_descriptor_limit(options.plan.clients + _OWN_DESCRIPTORS)
        with _infra_envs(options, token) as infra_envs:
            report = _run(options, options.plan_for(infra_envs), reactor, version)
    except (OptionsError, RegistrationError) as error:
        return tell_fault(error)
    return show_report(report, options.report)


def tell_fault(error: Exception) -> int:
    """Print why there is no report; return the exit status."""
    for line in str(error).splitlines():
        tell(f"image-service: {line}")
    return EXIT_USAGE if isinstance(error, OptionsError) else EXIT_FAILED


def show_report(report: Report, directory: Path | None) -> int:
    """Print a report, write it into a directory if there is one, and return the exit status."""
    sys.stdout.write(render_text(report))
    if directory is not None:
        write_reports(report, directory)
    return EXIT_FAILED if report.missed() else 0


def raise_descriptor_limit(count: int) -> None:
    """Let this process open so many files; raises OptionsError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise OptionsError(f"--clients: {count} descriptors are needed, and the limit is {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def _infra_envs(options: LoadTestOptions, token: str | None) -> AbstractContextManager[Any]:
    if options.api is None or options.build is None:
        return nullcontext(options.infra_envs)
    context = client_context(options.ca_file, insecure=options.insecure)
    return registered(options.api, options.register, options.build, token, context)


def _run(options: LoadTestOptions, plan: Plan, reactor: Any, version: str) -> Report:  # noqa: ANN401 - same
    dialer = make_dialer(reactor, plan, options.ca_file, insecure=options.insecure)
    return run_to_report(
        lambda show: Run(reactor, plan, dialer, show), plan, options.objectives, reactor, version
    )


def make_dialer(
    reactor: Any,  # noqa: ANN401 - same
    plan: Plan,
    ca_file: Path | None,
    *,
    insecure: bool,
    source: Callable[[int], str] | None = None,
) -> Dialer:
    """Return the dialer of a plan; `source` is that of `Dialer`. Raises OptionsError: a name is not known."""
    addresses = {}
    for origin in sorted({target.origin for target in plan.targets}):
        try:
            addresses[origin] = find_addresses(origin)
        except (OSError, UnicodeError) as error:
            raise OptionsError(f"cannot resolve {origin}: {error}") from None
    return Dialer(
        reactor,
        addresses,
        https_policy(ca_file, insecure=insecure),
        clock=time.monotonic,
        timeout_seconds=plan.timeout_seconds,
        source=source,
    )


def run_to_report(
    make_run: Callable[[Callable[[Interval], None]], Run],
    plan: Plan,
    objectives: Sequence[Objective],
    reactor: Any,  # noqa: ANN401 - same
    version: str,
) -> Report:
    """Run the reactor for a run, and return its report.

    Args:
        make_run: is called with the function that shows intervals.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with _StatusLine(plan.seconds) as line:
        run = make_run(line.show)
        _run_reactor(reactor, run)
    counters = run.state.counters
    return Report(
        plan=plan,
        objectives=objectives,
        started_at=started_at,
        seconds=run.seconds,
        was_interrupted=run.was_interrupted,
        cpu_share=run.cpu_share,
        requests=counters.requests,
        byte_count=counters.byte_count,
        refusals=counters.refusals,
        reconnects=counters.reconnects,
        errors=counters.errors,
        details=counters.details,
        client_version=version,
        server_software=sorted(counters.servers),
        faults=counters.faults,
        examples=counters.examples,
        blocks_compared=run.state.blocks.compared,
        timings=counters.timings,
        plotted=counters.plotted,
        intervals=counters.intervals,
        checks=run.checks,
        fleet=run.fleet_result,
    )


def _run_reactor(reactor: Any, run: Run) -> None:  # noqa: ANN401 - same
    failures: list[Failure] = []

    def interrupt(*_: object) -> None:
        reactor.callFromThread(run.interrupt)

    def start() -> None:
        signal.signal(signal.SIGTERM, interrupt)  # now: the reactor has replaced an earlier handler
        running = Deferred.fromCoroutine(run.run())
        running.addErrback(failures.append)
        running.addBoth(lambda _: reactor.stop())

    signal.signal(signal.SIGINT, interrupt)
    reactor.callWhenRunning(start)
    reactor.run()
    for failure in failures:
        failure.raiseException()


def write_reports(report: Report, directory: Path) -> None:
    """Write a report as JSON and as a page."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    (directory / "report.html").write_text(render_page(report), encoding="utf-8")


class _StatusLine:
    """Shows the latest second on a terminal; on anything else, nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def show(self, interval: Interval) -> None:
        """Show an interval."""
        self._write(render_interval(interval, self._seconds))

    def _write(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
