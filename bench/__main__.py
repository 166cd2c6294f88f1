"""This service beside nginx, and beside any peer, in one run: ``make bench``, or ``python -m bench``.

All serve the same base image over loopback: nginx as a plain file, this service customised, one process each.
They are driven in turn, round after round, so that what the machine does meanwhile hits all of them. What
counts are the ratios to nginx in the same round; absolute figures hold for the machine and the minute only.

To compare while you tune, run one scenario, which takes less than 90 s:

    python -m bench --list
    python -m bench --scenario 'HTTP, 64 KiB ranges, 16 connections'
    python -m bench --scenario '*64 KiB*' --rounds 3 --seconds 2
    python -m bench --scenario 'HTTPS, whole*' --server image-service      # without nginx: CPU time alone
    python -m bench --scenario '…' --peer before=http://127.0.0.1:8080/… --peer-pid before=1234

--directory DIR keeps the images between runs, which then start sooner. Whole runs can be made of parts:
--json writes one, and `python -m bench.report FILE…` prints the tables of several.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench import machine, report
from bench.race import Race, run_race
from bench.results import Document
from bench.scenarios import scenarios
from bench.servers import NGINX, SERVICE, Server, end_on_sigterm
from bench.stage import QUICK, Effort, Stage

if TYPE_CHECKING:
    from bench.study import Study


def main() -> None:
    """Measure, and print the tables."""
    options = parse(sys.argv[1:])
    end_on_sigterm()
    with ExitStack() as stack:
        directory = options.directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        servers = frozenset(options.server)
        stage = Stage(effort(options), directory, stack, peers(options.peer, options.peer_pid), servers)
        chosen = choose(stage, options.scenario)
        if options.list:
            print("\n".join(scenario.name for scenario in chosen))
            return
        document = measure(stage, chosen)
    print("\n".join(report.lines(document)))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name the scenarios and do nothing else")
    add("--scenario", action="append", default=[], metavar="PATTERN", help="only those; * is anything")
    add(
        "--server",
        action="append",
        default=[],
        metavar="NAME",
        help="only these: image-service, nginx, a peer",
    )
    add("--peer", action="append", default=[], metavar="NAME=URL", type=_pair, help="one more server")
    add(
        "--peer-pid",
        action="append",
        default=[],
        metavar="NAME=PID",
        type=_pair,
        help="whose CPU time counts",
    )
    add("--rounds", type=_positive, default=5, help="of each comparison (%(default)s)")
    add("--seconds", type=_positive, default=4, help="of a round and server (%(default)s)")
    add("--megabytes", type=_positive, default=970, help="size of the base image, in MiB (%(default)s)")
    add("--quick", action="store_true", help="see whether everything runs; the figures mean nothing")
    add("--directory", type=Path, metavar="DIR", help="for images and data, which stay there")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    options = parser.parse_args(arguments)
    unknown = set(options.server) - {SERVICE, NGINX, *(name for name, _ in options.peer)}
    if unknown:
        parser.error(f"no server is called {' or '.join(sorted(unknown))}")
    return options


def effort(options: argparse.Namespace) -> Effort:
    """How much is measured."""
    if options.quick:
        return QUICK
    return Effort(rounds=options.rounds, seconds=options.seconds, megabytes=options.megabytes)


def choose(stage: Stage, patterns: list[str]) -> list[Race | Study]:
    """The scenarios whose names fit one of the patterns; without patterns all.

    Raises:
        SystemExit: there is none.
    """
    every = list(scenarios(stage))
    chosen = [each for each in every if any(fnmatchcase(each.name, pattern) for pattern in patterns or "*")]
    if not chosen:
        raise SystemExit(f"no scenario is like {' or '.join(patterns)}; see --list")
    return chosen


def peers(urls: list[tuple[str, str]], pids: list[tuple[str, str]]) -> tuple[Server, ...]:
    """The other servers; one that is named twice has a URL for HTTP and one for HTTPS."""
    by_name: dict[str, dict[str, str]] = {}
    for name, url in urls:
        by_name.setdefault(name, {})[urlsplit(url).scheme] = url
    known = {name: int(pid) for name, pid in pids}
    return tuple(Server(name, by_scheme, known.get(name)) for name, by_scheme in by_name.items())


def measure(stage: Stage, chosen: list[Race | Study]) -> Document:
    """Run the scenarios, and tell on standard error which is under way."""
    document = Document(machine=machine.describe(stage.directory), races=[], findings=[])
    for scenario in chosen:
        print(scenario.name, file=sys.stderr, flush=True)
        if isinstance(scenario, Race):
            effort = stage.effort
            document["races"].append(run_race(scenario, stage.servers, effort.rounds, effort.seconds))
        else:
            document["findings"] += [figure.of(scenario.name) for figure in scenario.run(stage)]
    if document["races"]:
        document["machine"]["TLS"] = machine.negotiated(stage.servers)
    return document


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: a whole number, at least 1, is needed")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: NAME=VALUE is needed")
    return name, value


if __name__ == "__main__":
    main()
