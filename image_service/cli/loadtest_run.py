"""What ``image-service loadtest`` does."""

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

from image_service.assisted.tls import https_policy
from image_service.catalog.download.http_get import trusting
from image_service.cli.command import end_in_order
from image_service.errors import ConfigurationError
from image_service.loadtest.dialer import Dialer, find_addresses
from image_service.loadtest.infra_envs import registered
from image_service.loadtest.page import render_page
from image_service.loadtest.report import Report
from image_service.loadtest.run import Run
from image_service.loadtest.text import render_interval, render_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twisted.python.failure import Failure

    from image_service.loadtest.options import Stated
    from image_service.loadtest.plan import Plan
    from image_service.loadtest.tally import Interval

EXIT_MISSED = 1
_OWN_DESCRIPTORS = 64
"""What this process has open beside its connections."""


def run_stated(stated: Stated, token: str | None) -> int:
    """Run a load test, and tell what it has shown.

    Args:
        stated: what the command line says.
        token: of the API that infra-envs are registered with; None: it asks for none.

    Returns:
        exit status.

    Raises:
        ConfigurationError: a server's name is not known, or there are more clients than descriptors.
        Unavailable: infra-envs cannot be registered.
        OSError: the report cannot be written.
    """
    end_in_order()
    _allow_descriptors(stated.plan.clients + _OWN_DESCRIPTORS)
    with _infra_envs(stated, token) as infra_envs:
        report = _run(stated, stated.plan_for(infra_envs))
    sys.stdout.write(render_text(report))
    if stated.report is not None:
        _write(report, stated.report)
    return EXIT_MISSED if report.missed() else 0


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise ConfigurationError(
            f"--clients: {count} descriptors are needed, and the limit is {hard} (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def _infra_envs(stated: Stated, token: str | None) -> AbstractContextManager[Any]:
    if stated.api is None or stated.build is None:
        return nullcontext(stated.infra_envs)
    trust = trusting(stated.ca_file, insecure=stated.insecure).get()
    return registered(stated.api, stated.register, stated.build, token, trust)


def _run(stated: Stated, plan: Plan) -> Report:
    from twisted.internet import reactor as installed  # noqa: PLC0415, TID251 - an entry point

    reactor: Any = installed
    addresses = {}
    for origin in sorted({target.origin for target in plan.targets}):
        try:
            addresses[origin] = find_addresses(origin)
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(f"{origin} is not known: {error}") from None
    policy = https_policy(stated.ca_file, insecure=stated.insecure)
    dialer = Dialer(reactor, addresses, policy, clock=time.monotonic, timeout_seconds=plan.timeout_seconds)
    begun_at = datetime.now(UTC).isoformat(timespec="seconds")
    with _Line(plan.seconds) as line:
        run = Run(reactor, plan, dialer, line.show)
        _drive(reactor, run)
    return _report(stated, plan, run, begun_at)


def _drive(reactor: Any, run: Run) -> None:  # noqa: ANN401 - the reactor is a module
    failures: list[Failure] = []

    def end(*_: object) -> None:
        reactor.callFromThread(run.interrupt)

    def start() -> None:
        signal.signal(signal.SIGTERM, end)  # now: the reactor has set its own, which would lose the verdict
        driving = Deferred.fromCoroutine(run.drive())
        driving.addErrback(failures.append)
        driving.addBoth(lambda _: reactor.stop())

    signal.signal(signal.SIGINT, end)
    reactor.callWhenRunning(start)
    reactor.run()
    for failure in failures:
        failure.raiseException()


def _report(stated: Stated, plan: Plan, run: Run, begun_at: str) -> Report:
    tally = run.course.tally
    return Report(
        plan=plan,
        objectives=stated.objectives,
        begun_at=begun_at,
        seconds=run.seconds,
        was_interrupted=run.was_interrupted,
        cpu_share=run.cpu_share,
        requests=tally.requests,
        byte_count=tally.byte_count,
        refusals=tally.refusals,
        reconnects=tally.reconnects,
        errors=tally.errors,
        faults=tally.faults,
        examples=tally.examples,
        blocks_compared=run.course.blocks.compared,
        timings=tally.timings,
        plotted=tally.plotted,
        intervals=tally.intervals,
        checks=run.checks,
    )


def _write(report: Report, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    (directory / "report.html").write_text(render_page(report), encoding="utf-8")


class _Line:
    """Shows the latest second on a terminal, and nothing anywhere else."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put("")

    def show(self, interval: Interval) -> None:
        """Show a second."""
        self._put(render_interval(interval, self._seconds))

    def _put(self, text: str) -> None:
        if self._seen:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
