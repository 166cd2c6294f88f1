"""Tables as docs/performance.md has them, of what ``--json FILE`` wrote: ``python -m bench.report FILE…``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import Document, meets
from bench.servers import NGINX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.results import Cost, Finding, RaceResult, Ratio, Spread, Target

_NOTHING = "–"  # noqa: RUF001 - an empty cell


def main() -> None:
    """Print the tables of some files."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    files = parser.parse_args().files
    try:
        documents = [json.loads(file.read_text()) for file in files]
    except (OSError, ValueError) as error:
        parser.error(f"not what --json wrote: {error}")
    for line in lines(merged(documents)):
        print(line)


def merged(documents: Sequence[Document]) -> Document:
    """Take runs of several scenarios for one; the machine is that of the first, but for its load."""
    return Document(
        machine=documents[0]["machine"],
        races=[race for document in documents for race in document["races"]],
        findings=[finding for document in documents for finding in document["findings"]],
    )


def lines(document: Document) -> Iterator[str]:
    """Give a run as Markdown."""
    yield from (f"- {name}: {value}" for name, value in document["machine"].items())
    if document["races"]:
        yield from ("", *race_table(document["races"]))
    if document["findings"]:
        yield from ("", *finding_table(document["findings"]))


def race_table(races: Sequence[RaceResult]) -> Iterator[str]:
    """One line for each comparison, and two columns for each server that is compared."""
    servers = list(dict.fromkeys(name for race in races for name in race["servers"]))
    compared = [name for name in servers if any(name in race["ratios"] for race in races)]
    ratios = [f"{name} ÷ {NGINX}: {what}" for name in compared for what in ("throughput", "CPU")]
    yield _row(["Scenario", *servers, *ratios, "Target"])
    yield "|---" * (len(servers) + len(ratios) + 2) + "|"
    for race in races:
        cells = [_cost(race, race["servers"].get(name)) for name in servers]
        cells += [cell for name in compared for cell in _ratio(race["ratios"].get(name))]
        yield _row([race["scenario"], *cells, _race_target(race)])


def finding_table(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each figure."""
    yield _row(["Scenario", "Server", "Figure", "Measured", "Target"])
    yield "|---" * 5 + "|"
    for finding in findings:
        measured = f"{_spread(finding['value'])} {finding['unit']}".rstrip()
        target = _target(finding["target"], finding["value"])
        yield _row([finding["scenario"], finding["server"], finding["figure"], measured, target])


def _cost(race: RaceResult, cost: Cost | None) -> str:
    if cost is None:
        return _NOTHING
    per_gigabyte = _cpu(cost["cpu_seconds_per_gigabyte"], "GB")
    if race["counts_bytes"]:
        return f"{cost['gigabytes_per_second']['median']:.2f} GB/s{per_gigabyte}"
    per_1000 = _cpu(cost["cpu_seconds_per_1000_requests"], "1,000")
    return f"{cost['requests_per_second']['median']:,.0f}/s{per_1000}{per_gigabyte}"


def _cpu(value: Spread | None, unit: str) -> str:
    return "" if value is None else f" · {_number(value['median'])} s/{unit}"


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return _NOTHING, _NOTHING
    return _spread(ratio["throughput"]), _NOTHING if ratio["cpu"] is None else _spread(ratio["cpu"])


def _race_target(race: RaceResult) -> str:
    """What is wanted of this service, or of whoever is compared first."""
    ratio = next(iter(race["ratios"].values()), None)
    cpu = ratio and ratio["cpu"]
    said = [
        _target(race["throughput_target"], ratio["throughput"] if ratio else None),
        _target(race["cpu_target"], cpu, "CPU "),
    ]
    return "; ".join(filter(None, said))


def _target(target: Target, value: Spread | None, prefix: str = "") -> str:
    wanted = [f"{prefix}{bound.replace('_', ' ')} {number:g}" for bound, number in target.items()]
    if not wanted or value is None:
        return "".join(wanted)
    return f"{' and '.join(wanted)}: {'met' if meets(value, target) else 'missed'}"


def _spread(value: Spread) -> str:
    return f"{_number(value['median'])} ({_number(value['least'])} to {_number(value['greatest'])})"


def _number(value: float) -> str:
    """Three digits that count, or as many as there are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")  # noqa: PLR2004


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
