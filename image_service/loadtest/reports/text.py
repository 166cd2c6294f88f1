"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.loadtest.objectives import Dimension, format_value
from image_service.loadtest.reports.report import PERCENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from image_service.loadtest.counters import Interval
    from image_service.loadtest.reports.report import Report

_HEAD = ("", "count", *(f"p{percent:g}" for percent in PERCENTS), "max")
_MEGABYTE = 1e6


def render_text(report: Report) -> str:
    """Render a report in lines of at most 100 characters, unless an example is longer."""
    parts = (_plan(report), _counts(report), _timings(report), _verification(report), _verdict(report))
    return "\n".join("".join(f"{line}\n" for line in part) for part in parts)


def render_interval(interval: Interval, seconds: float) -> str:
    """Render an interval of a run of `seconds` as one line, without its end."""
    rate = interval.requests / interval.seconds
    throughput = interval.byte_count / interval.seconds
    return (
        f"{interval.at_seconds:.0f}/{seconds:.0f} s  {format_value(rate, Dimension.PER_SECOND)}  "
        f"{format_value(throughput, Dimension.BYTES_PER_SECOND)}  "
        f"p99 {format_value(interval.p99_seconds, Dimension.SECONDS)}  "
        f"{interval.errors} errors  {interval.refusals} refusals"
    )


def _plan(report: Report) -> Iterator[str]:
    plan = report.plan
    yield f"{plan.profile}, {plan.clients} clients, images: {len(plan.targets)} of {', '.join(plan.servers)}"
    yield f"for {report.seconds:.1f} s; this client used {report.cpu_share:.0%} of a processor"


def _counts(report: Report) -> Iterator[str]:
    rates = report.rates()
    yield f"requests    {report.requests:,} answered, {format_value(rates['requests'], Dimension.PER_SECOND)}"
    throughput = format_value(rates["throughput"], Dimension.BYTES_PER_SECOND)
    yield f"content     {report.byte_count / _MEGABYTE:,.1f} MB, {throughput}"
    yield f"refusals    {report.refusals:,}, {format_value(rates['refusals'], Dimension.SHARE)}"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.errors.items()))
    yield f"errors      {kinds or 'none'}, {format_value(rates['errors'], Dimension.SHARE)}"
    if report.reconnects:
        yield f"reconnects  {report.reconnects:,}: kept-alive connections that ended before a response began"


def _timings(report: Report) -> Iterator[str]:
    yield _row(_HEAD)
    for timing, histogram in report.timings.items():
        if histogram.count:
            values = [*map(histogram.percentile, PERCENTS), histogram.largest]
            values_text = [format_value(value, Dimension.SECONDS) for value in values]
            yield _row((timing, f"{histogram.count:,}", *values_text))
    yield from report.remarks()


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    return f"{first:<14}" + "".join(f"{cell:>12}" for cell in others)


def _verification(report: Report) -> Iterator[str]:
    yield f"{report.blocks_compared:,} blocks of 4 KiB were compared with earlier reads"
    for check in report.checks:
        yield f"read whole: {check.image}: {check.text}"
    yield from report.examples


def _verdict(report: Report) -> Iterator[str]:
    for objective in report.objectives:
        met = "met" if objective.is_met_by(report.measured(objective)) else "missed"
        yield f"{objective.text}: {met}, {report.format_measured(objective)}"
    missed = report.missed()
    yield from (reason for reason in missed if "is missed" not in reason)
    yield "FAILED" if missed else "passed"
