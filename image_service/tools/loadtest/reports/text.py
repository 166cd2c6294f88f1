"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.tools.loadtest.reports.report import PERCENTS
from image_service.tools.loadtest.traffic.objectives import Dimension, format_duration, format_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.tools.loadtest.reports.report import Report
    from image_service.tools.loadtest.traffic.counters import Interval

_MEGABYTE = 1e6


def render_text(report: Report) -> str:
    """Render a report in lines of at most 100 characters, unless an example is longer."""
    return "".join(f"{line}\n" for line in _lines(report))


def render_interval(interval: Interval, seconds: float) -> str:
    """Render an interval of a run of `seconds` as one line, without its end."""
    rate = format_value(interval.requests / interval.seconds, Dimension.PER_SECOND)
    throughput = format_value(interval.byte_count / interval.seconds, Dimension.BYTES_PER_SECOND)
    return (
        f"{interval.at_seconds:.0f}/{seconds:.0f} s  {rate}  {throughput}  "
        f"p99 {format_duration(interval.p99_seconds)}  "
        f"{interval.errors} errors  {interval.refusals} refusals"
    )


def _lines(report: Report) -> Iterator[str]:
    plan = report.plan
    yield f"{plan.profile}, {plan.clients} clients, images: {len(plan.targets)} of {', '.join(plan.servers)}"
    yield f"for {report.seconds:.1f} s; this client used {report.cpu_share:.0%} of a processor"
    yield report.format_software()
    yield ""
    yield f"requests    {report.requests:,} succeeded, {report.format_rate('requests')}"
    yield f"content     {report.byte_count / _MEGABYTE:,.1f} MB, {report.format_rate('throughput')}"
    yield f"refusals    {report.refusals:,}, {report.format_rate('refusals')}"
    yield f"errors      {report.format_errors()}, {report.format_rate('errors')}"
    if report.reconnects:
        yield f"reconnects  {report.reconnects:,}: kept-alive connections that ended before a response began"
    if report.fleet is not None:
        yield from report.fleet.lines()
    yield ""
    yield _row("", "count", *(f"p{percent:g}" for percent in PERCENTS), "max")
    for timing, histogram in report.timings.items():
        if histogram.count:
            durations = [*map(histogram.percentile, PERCENTS), histogram.largest]
            yield _row(timing, f"{histogram.count:,}", *map(format_duration, durations))
    yield from report.remarks()
    yield ""
    compared = "blocks of 4 KiB were compared with earlier reads"
    if report.fleet is not None:
        compared = "pieces were compared with the bytes that the load test has spliced itself"
    yield f"{report.blocks_compared:,} {compared}"
    yield from (f"read whole: {check.image}: {check.text}" for check in report.checks)
    yield from report.examples
    yield ""
    for objective in report.objectives:
        met = "met" if objective.is_met_by(report.measured(objective)) else "missed"
        yield f"{objective.text}: {met}, {report.format_measured(objective)}"
    missed = report.missed()
    yield from (reason for reason in missed if "is missed" not in reason)
    yield "FAILED" if missed else "passed"


def _row(first: str, *others: str) -> str:
    return f"{first:<14}" + "".join(f"{cell:>12}" for cell in others)
