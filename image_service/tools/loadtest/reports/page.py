"""The report as one HTML page without external resources."""

from __future__ import annotations

import math
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import attrs

from image_service.tools.loadtest.reports.plot import ChartLine, chart, linear_axis, log_axis
from image_service.tools.loadtest.reports.report import PERCENTS
from image_service.tools.loadtest.traffic.objectives import Dimension, Timing, format_duration, format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from image_service.tools.loadtest.reports.plot import ChartAxis
    from image_service.tools.loadtest.reports.report import Report
    from image_service.tools.loadtest.traffic.counters import Interval

MAX_POINTS = 300
"""Of a line; a longer run is drawn in longer intervals."""
_NINES = 5  # the distribution is shown to 99.999 %
_SHORTEST_SECONDS = 1e-5
_MET = {True: "met", False: "missed"}
_RATE_CHARTS = (
    ("Content read", Dimension.BYTES_PER_SECOND, {"content": "byte_count"}),
    ("Successful requests", Dimension.PER_SECOND, {"requests": "requests"}),
    ("Errors and refusals", Dimension.PER_SECOND, {"errors": "errors", "refusals": "refusals"}),
)
"""Title, dimension, and the member of an interval for each line."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --quiet: #5b6570; --paper: #fff; --rule: #dde2e7;
  --good: #0b7a3b; --bad: #b3261e; --line0: #0062a3; --line1: #c26a00; --line2: #a3357f; --line3: #3d7a2a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --quiet: #9aa4ae; --paper: #14181c;
  --rule: #333a42; --good: #5fd08a; --bad: #ff8a80; --line0: #63b3ed; --line1: #f0a34a; --line2: #e58bc8;
  --line3: #8fce79; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 800px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin: 2em 0 .4em; }
p { margin: .3em 0; }
.quiet { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .25em .6em; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { color: var(--quiet); }
td { font-variant-numeric: tabular-nums; }
svg { width: 100%; min-width: 700px; height: auto; margin-top: 1.2em; }
svg text { fill: var(--quiet); font-size: 12px; } svg .heading { fill: var(--ink); font-size: 14px; }
svg .right { text-anchor: end; } svg .middle { text-anchor: middle; }
svg path { fill: none; stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .line0 { stroke: var(--line0); } svg .line1 { stroke: var(--line1); }
svg .line2 { stroke: var(--line2); } svg .line3 { stroke: var(--line3); }
@media (max-width: 600px) { th, td { white-space: normal; padding: .25em .3em; font-size: 12px; } }
"""


def render_page(report: Report) -> str:
    """Render a report as an HTML document."""
    title = f"Load test of {escape(', '.join(report.plan.servers))}"
    body = "".join((*_verdict(report), *_charts(report), *_numbers(report)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )


def _verdict(report: Report) -> Iterator[str]:
    plan, missed = report.plan, report.missed()
    yield _paragraph(
        f"{plan.profile} · {plan.clients} clients · images: {len(plan.targets)} · {report.seconds:.1f} s"
        f" from {report.started_at} · client used {report.cpu_share:.0%} of a processor",
        "quiet",
    )
    yield _paragraph(report.format_software(), "quiet")
    yield _paragraph("Failed" if missed else "Passed", "bad" if missed else "good")
    yield from (_paragraph(reason, "bad") for reason in missed)
    if report.fleet is not None:
        yield from (_paragraph(line, "") for line in report.fleet.lines())
    yield from (_paragraph(remark, "quiet") for remark in report.remarks())
    if report.objectives:
        rows = [
            (each.text, report.format_measured(each), _MET[each.is_met_by(report.measured(each))])
            for each in report.objectives
        ]
        yield "<h2>Objectives</h2>" + _table(("objective", "measured", ""), rows)


def _charts(report: Report) -> Iterator[str]:
    rows = thin(report.intervals)
    if rows:
        time = linear_axis(rows[-1].at_seconds, lambda seconds: f"{seconds:g} s", tight=True)
        percentiles = [
            ChartLine("p50", [(row.at_seconds, row.p50_seconds) for row in rows]),
            ChartLine("p99", [(row.at_seconds, row.p99_seconds) for row in rows]),
            ChartLine("max", [(row.at_seconds, row.max_seconds) for row in rows]),
        ]
        yield "<h2>Over time</h2>"
        yield _scrollable(
            chart(f"Time of a {report.plotted}", time, _duration_axis(percentiles), percentiles)
        )
        for title, dimension, counts in _RATE_CHARTS:
            lines = [
                ChartLine(name, [(row.at_seconds, getattr(row, member) / row.seconds) for row in rows])
                for name, member in counts.items()
            ]
            largest = max(value for line in lines for _, value in line.points)
            axis = linear_axis(largest, partial(format_value, dimension=dimension))
            yield _scrollable(chart(title, time, axis, lines))
    # Shares are drawn as nines, so that the last thousandth is as wide as the first nine tenths.
    lines = [
        ChartLine(timing, [(_nines(share), seconds) for seconds, share in report.timings[timing].shares()])
        for timing in (Timing.REQUEST, Timing.FIRST_BYTE, Timing.CONNECT, Timing.FIRST_REQUEST)
        if report.timings[timing].count
    ]
    nines = linear_axis(_NINES, lambda value: f"{100 - 100 / 10**value:g} %")
    yield "<h2>Distribution</h2>"
    yield _scrollable(chart("Durations by share of requests", nines, _duration_axis(lines), lines))


def _nines(share: float) -> float:
    return _NINES if share >= 1 else min(-math.log10(1 - share), _NINES)


def _duration_axis(lines: Sequence[ChartLine]) -> ChartAxis:
    values = [max(value, _SHORTEST_SECONDS) for line in lines for _, value in line.points if value]
    smallest, largest = min(values, default=_SHORTEST_SECONDS), max(values, default=1.0)
    return log_axis(smallest, largest, format_duration)


def thin(intervals: Sequence[Interval]) -> list[Interval]:
    """Join neighboring intervals until at most ``MAX_POINTS`` remain.

    Counts are sums; p50 is the mean, p99 and max are the worst.
    """
    size = math.ceil(len(intervals) / MAX_POINTS) or 1
    groups = [intervals[first : first + size] for first in range(0, len(intervals), size)]
    return [
        attrs.evolve(
            rows[-1],
            seconds=sum(row.seconds for row in rows),
            requests=sum(row.requests for row in rows),
            byte_count=sum(row.byte_count for row in rows),
            errors=sum(row.errors for row in rows),
            refusals=sum(row.refusals for row in rows),
            p50_seconds=sum(row.p50_seconds for row in rows) / len(rows),
            p99_seconds=max(row.p99_seconds for row in rows),
            max_seconds=max(row.max_seconds for row in rows),
        )
        for rows in groups
    ]


def _numbers(report: Report) -> Iterator[str]:
    yield "<h2>Numbers</h2>"
    timings = [
        (
            timing,
            f"{each.count:,}",
            *map(format_duration, (each.mean, *map(each.percentile, PERCENTS), each.largest)),
        )
        for timing, each in report.timings.items()
        if each.count
    ]
    yield _table(("time of", "count", "mean", *(f"p{percent:g}" for percent in PERCENTS), "max"), timings)
    counts = [
        ("successful requests", f"{report.requests:,}", report.format_rate("requests")),
        ("bytes of content", f"{report.byte_count:,}", report.format_rate("throughput")),
        ("refusals", f"{report.refusals:,}", report.format_rate("refusals")),
        ("errors", f"{sum(report.errors.values()):,}", report.format_rate("errors")),
        *((f"error {kind}", f"{count:,}", "") for kind, count in sorted(report.errors.items())),
        ("reconnects", f"{report.reconnects:,}", ""),
    ]
    yield _table(("", "", ""), counts)
    yield "<h2>Verification</h2>"
    yield _paragraph(f"{report.blocks_compared:,} blocks of 4 KiB were compared with earlier reads.")
    yield from (_paragraph(f"Read whole: {check.image}: {check.text}") for check in report.checks)
    yield from (_paragraph(example, "bad") for example in report.examples)


def _paragraph(text: str, style: str = "") -> str:
    return f'<p class="{style}">{escape(text)}</p>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return _scrollable(f"<table><tr>{head}</tr>{body}</table>")


def _scrollable(content: str) -> str:
    """Let a narrow screen scroll to the rest of something wide, instead of making it too small to read."""
    return f'<div class="scroll">{content}</div>'
