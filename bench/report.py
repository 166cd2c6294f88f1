"""Tables of results, and docs/performance.md: ``python -m bench.report >docs/performance.md``.

The page is bench/performance.template with the tables of bench/results. In the template, ``{{tables}}`` are
the tables, ``{{machines}}`` what the figures depend on, and ``{{PATTERN | FIGURE}}`` the least and the
greatest median of the scenarios whose names match (of a comparison: throughput or CPU, divided by nginx's).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import RESULTS, load, meets
from bench.scenarios import SCENARIOS
from bench.servers import NGINX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.results import ComparisonResult, Cost, Finding, Ratio, Result, Spread, Target

_NOTHING = "–"  # noqa: RUF001 - an empty cell
_TEMPLATE = Path(__file__).with_name("performance.template")
_SMALL = (
    "**Small numbers: they show that the scenarios run, and are not figures. `make bench-full` has those.**"
)


def render_page() -> str:
    """Return docs/performance.md."""
    results = {scenario.name: load(RESULTS, scenario.name) for scenario in SCENARIOS}
    found = [result for result in results.values() if result]
    missing = [name for name, result in results.items() if not result]

    def replacement(placeholder: re.Match[str]) -> str:
        pattern, _, figure = placeholder[1].partition(" | ")
        if pattern == "tables":
            return "\n".join(_tables(found, missing))
        if pattern == "machines":
            return "\n".join(_machines(found))
        medians = [_median(each, figure) for each in found if fnmatchcase(each["scenario"], pattern)]
        return " to ".join(dict.fromkeys(_number(value) for value in (min(medians), max(medians))))

    return re.sub(r"\{\{([^{}]+)\}\}", replacement, _TEMPLATE.read_text())


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Render a run as Markdown."""
    if not all(result["effort"].get("full", True) for result in results):
        yield from (_SMALL, "")
    yield from (*_machines(results), "", *_tables(results))


def _machines(results: Sequence[Result]) -> Iterator[str]:
    """Render a line for each machine, with the measurements on it."""
    measurements: dict[str, dict[str, None]] = {}
    for result in results:
        known = {name: value for name, value in result["machine"].items() if name != "TLS"}
        text = "; ".join(f"{name}: {value}" for name, value in known.items())
        measurements.setdefault(text, {})[f"{result['commit']}, {result['date']}"] = None
    yield from (f"- {' and '.join(labels)}: {text}" for text, labels in measurements.items() if text)
    yield from (
        f"- TLS: {text}"
        for text in {each["machine"]["TLS"]: None for each in results if "TLS" in each["machine"]}
    )


def _tables(results: Sequence[Result], missing: Sequence[str] = ()) -> Iterator[str]:
    comparisons = [result for result in results if "comparison" in result]
    studies = [result for result in results if "comparison" not in result]
    if comparisons:
        yield from _comparison_table(comparisons)
    if comparisons and studies:
        yield ""
    if studies:
        yield from _finding_table(studies)
    if missing:
        yield from ("", f"Not measured yet: {'; '.join(missing)}.")


def _comparison_table(results: Sequence[Result]) -> Iterator[str]:
    """Render a line for each comparison, with two columns for each pair of servers."""
    comparisons = [result["comparison"] for result in results]
    servers = list(dict.fromkeys(name for each in comparisons for name in each["servers"]))
    pairs = list(dict.fromkeys(_pair(ratio) for each in comparisons for ratio in each["ratios"]))
    heads = [f"{name} ÷ {base}: {what}" for name, base in pairs for what in ("throughput", "CPU")]
    yield from _head(["Scenario", *servers, *heads, "Target", "Measured at"])
    for result, each in zip(results, comparisons, strict=True):
        ratios = {_pair(ratio): ratio for ratio in each["ratios"]}
        cells = [_cost(each, each["servers"].get(name)) for name in servers]
        cells += [cell for pair in pairs for cell in _ratio(ratios.get(pair))]
        targets = "; ".join(filter(None, map(_ratio_target, each["ratios"])))
        yield _row([result["scenario"], *cells, targets, _measured(result)])


def _finding_table(results: Sequence[Result]) -> Iterator[str]:
    """Render a line for each figure, with the values of all servers that have it.

    The server of a scenario's first figure is not named.
    """
    yield from _head(["Scenario", "Figure", "Value", "Target", "Measured at"])
    for result in results:
        if "left_out" in result:
            yield _row([result["scenario"], f"left out: {result['left_out']}", "", "", _measured(result)])
            continue
        figures: dict[str, list[Finding]] = {}
        for finding in result["findings"]:
            figures.setdefault(finding["figure"], []).append(finding)
        labels, own = (
            [result["scenario"], _measured(result)],
            [each["server"] for each in result["findings"][:1]],
        )
        for figure, findings in figures.items():
            values = "; ".join(_value(finding, own) for finding in findings)
            targets = [_target(finding["target"], finding["value"]) for finding in findings]
            yield _row([labels[0], figure, values, "; ".join(filter(None, targets)), labels[1]])
            labels = ["", ""]


def _value(finding: Finding, own: Sequence[str]) -> str:
    name = "" if finding["server"] in own else f"{finding['server']} "
    return f"{name}{_spread(finding['value'])} {finding['unit']}".rstrip()


def _median(result: Result, figure: str) -> float:
    """Return the first value of a figure; raises LookupError if there is none."""
    values = [each["value"] for each in result.get("findings", ()) if each["figure"] == figure]
    if "comparison" in result:
        ratios = {ratio["base"]: ratio for ratio in result["comparison"]["ratios"]}
        known = {"throughput": ratios[NGINX]["throughput"], "CPU": ratios[NGINX]["cpu"]}[figure]
        values = [known] if known else []
    return values[0]["median"]


def _measured(result: Result) -> str:
    effort = result["effort"]
    numbers = f", {effort['rounds']} × {effort['seconds']} s" if effort else ""  # noqa: RUF001 - a product
    load_average = f", load {result['load_average']:g}" if "load_average" in result else ""
    return f"{result['commit']}, {result['date']}{numbers}{load_average}"


def _cost(comparison: ComparisonResult, cost: Cost | None) -> str:
    if cost is None:
        return _NOTHING
    throughput = cost["throughput"]["median"]
    rate, unit = (
        (f"{throughput:.2f} GB", "GB") if comparison["counts_bytes"] else (f"{throughput:,.0f}", "1,000")
    )
    cpu = "" if cost["cpu"] is None else f" · {_number(cost['cpu']['median'])} s/{unit}"
    return f"{rate}/s{cpu}"


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return _NOTHING, _NOTHING
    return _spread(ratio["throughput"]), _NOTHING if ratio["cpu"] is None else _spread(ratio["cpu"])


def _pair(ratio: Ratio) -> tuple[str, str]:
    return ratio["server"], ratio["base"]


def _ratio_target(ratio: Ratio) -> str:
    texts = (
        _target(ratio["throughput_target"], ratio["throughput"], f"÷ {ratio['base']} "),
        _target(ratio["cpu_target"], ratio["cpu"], f"CPU ÷ {ratio['base']} "),
    )
    return "; ".join(filter(None, texts))


def _target(target: Target, value: Spread | None, prefix: str = "") -> str:
    bounds = [f"{prefix}{bound.replace('_', ' ')} {number:g}" for bound, number in target.items()]
    if not bounds or value is None:
        return "".join(bounds)
    return f"{' and '.join(bounds)}: {'met' if meets(value, target) else 'missed'}"


def _spread(value: Spread) -> str:
    median = _number(value["median"])
    if "least" not in value or value["least"] == value["greatest"]:
        return median
    return f"{median} ({_number(value['least'])} to {_number(value['greatest'])})"


def _number(value: float) -> str:
    """Format with three significant digits, or all before the point."""
    if value == 0 or abs(value) >= 100:  # noqa: PLR2004 - it has three digits
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def _head(names: Sequence[str]) -> Iterator[str]:
    yield _row(names)
    yield "|---" * len(names) + "|"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(render_page(), end="")
