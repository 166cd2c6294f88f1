"""Tables of the results that ``--json FILE`` wrote: ``python -m bench.report FILE…``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import Document, meets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.results import ComparisonResult, Cost, Finding, Ratio, Spread, Target

_NOTHING = "–"  # noqa: RUF001 - an empty cell


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    try:
        documents = [json.loads(file.read_text()) for file in files]
    except (OSError, ValueError) as error:
        parser.error(f"not a file that --json wrote: {error}")
    for line in lines(merged(documents)):
        print(line)


def merged(documents: Sequence[Document]) -> Document:
    """Return runs of several scenarios as one, with the machine of the first."""
    return Document(
        machine=documents[0]["machine"],
        comparisons=[each for document in documents for each in document["comparisons"]],
        findings=[finding for document in documents for finding in document["findings"]],
    )


def show(document: Document, path: Path | None) -> None:
    """Print a run, and write it to a file, if there is one."""
    print("\n".join(lines(document)))
    if path:
        path.write_text(json.dumps(document))


def lines(document: Document) -> Iterator[str]:
    """Render a run as Markdown."""
    yield from (f"- {name}: {value}" for name, value in document["machine"].items())
    if document["comparisons"]:
        yield from ("", *comparison_table(document["comparisons"]))
    if document["findings"]:
        yield from ("", *finding_table(document["findings"]))


def comparison_table(comparisons: Sequence[ComparisonResult]) -> Iterator[str]:
    """Render a line for each comparison, with two columns for each pair of servers."""
    servers = list(dict.fromkeys(name for each in comparisons for name in each["servers"]))
    pairs = list(dict.fromkeys(_pair(ratio) for each in comparisons for ratio in each["ratios"]))
    heads = [f"{name} ÷ {base}: {what}" for name, base in pairs for what in ("throughput", "CPU")]
    yield _row(["Scenario", *servers, *heads, "Target"])
    yield "|---" * (len(servers) + len(heads) + 2) + "|"
    for each in comparisons:
        ratios = {_pair(ratio): ratio for ratio in each["ratios"]}
        cells = [_cost(each, each["servers"].get(name)) for name in servers]
        cells += [cell for pair in pairs for cell in _ratio(ratios.get(pair))]
        yield _row([each["scenario"], *cells, "; ".join(filter(None, map(_ratio_target, each["ratios"])))])


def finding_table(findings: Sequence[Finding]) -> Iterator[str]:
    """Render a line for each figure."""
    yield _row(["Scenario", "Server", "Figure", "Measured", "Target"])
    yield "|---" * 5 + "|"
    for finding in findings:
        measured = f"{_spread(finding['value'])} {finding['unit']}".rstrip()
        target = _target(finding["target"], finding["value"])
        yield _row([finding["scenario"], finding["server"], finding["figure"], measured, target])


def _cost(comparison: ComparisonResult, cost: Cost | None) -> str:
    if cost is None:
        return _NOTHING
    per_gigabyte = _cpu(cost["cpu_seconds_per_gigabyte"], "GB")
    if comparison["counts_bytes"]:
        return f"{cost['gigabytes_per_second']['median']:.2f} GB/s{per_gigabyte}"
    per_1000 = _cpu(cost["cpu_seconds_per_1000_requests"], "1,000")
    return f"{cost['requests_per_second']['median']:,.0f}/s{per_1000}{per_gigabyte}"


def _cpu(value: Spread | None, unit: str) -> str:
    return "" if value is None else f" · {_number(value['median'])} s/{unit}"


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
    return f"{_number(value['median'])} ({_number(value['least'])} to {_number(value['greatest'])})"


def _number(value: float) -> str:
    """Format with three significant digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")  # noqa: PLR2004


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
