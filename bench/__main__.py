"""This service beside nginx, and beside any peer, in one run: ``make bench``, or ``python -m bench``.

All serve the same base image over loopback: nginx as a plain file, this service customized, one process each.
They are measured in turn, round after round, so that other load of the machine affects all of them. The
ratios of one round count; absolute figures hold for the machine and the minute only.

To compare while you tune, run one scenario, which takes less than 90 s:

    python -m bench --list
    python -m bench --scenario 'HTTP, 64 KiB ranges, 16 connections'
    python -m bench --scenario '*64 KiB*' --rounds 3 --seconds 2
    python -m bench --scenario 'HTTPS, whole*' --server image-service      # without nginx: CPU time alone

To compare with another commit, give its checkout: the same interpreter starts its service, with data of its
own. Without nginx all scenarios take about 20 minutes:

    git worktree add ../before 4fc9d8a
    python -m bench --peer before=../before --server image-service --server before

A peer may also be any server that runs already: --peer before=http://127.0.0.1:8080/… --peer-pid before=1234

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

import attrs

from bench import machine, report
from bench.comparison import Comparison, run_comparison
from bench.results import Document
from bench.scenarios import scenarios
from bench.servers import NGINX, SERVICE, Server, stop_on_sigterm
from bench.stage import QUICK, Effort, Selection, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.study import Study

DEFAULT_PEER = "peer"


@attrs.frozen
class Peer:
    """A peer on the command line: the URL of a running server, or a checkout of this service."""

    name: str
    url: str | None
    checkout: Path | None


def main() -> None:
    """Measure, and print the tables."""
    options = parse(sys.argv[1:])
    stop_on_sigterm()
    with ExitStack() as stack:
        directory = options.directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        checkouts = {peer.name: peer.checkout for peer in options.peer if peer.checkout}
        running = running_peers(options.peer, options.peer_pid)
        selection = Selection(frozenset(options.server), running, checkouts)
        stage = Stage(effort(options), directory.resolve(), stack, selection)
        selected = select(stage, options.scenario)
        if options.list:
            print("\n".join(scenario.name for scenario in selected))
            return

        def keep(document: Document) -> None:
            if options.json:
                options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")

        document = measure(stage, selected, keep)
        keep(document)
    print("\n".join(report.lines(document)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="print the names of the scenarios")
    add("--scenario", action="append", default=[], metavar="PATTERN", help="run only these; * is anything")
    add(
        "--server",
        action="append",
        default=[],
        metavar="NAME",
        help="measure only these: image-service, nginx, a peer",
    )
    add(
        "--peer",
        action="append",
        default=[],
        metavar="[NAME=]DIRECTORY|NAME=URL",
        type=_peer,
        help="one more server: a checkout of this service, or one that runs already",
    )
    add(
        "--peer-pid",
        action="append",
        default=[],
        metavar="NAME=PID",
        type=_pair,
        help="process of a peer that runs already, whose CPU time is measured",
    )
    add("--rounds", type=_positive, help="of each comparison (5; with the checkout of a peer 9)")
    add("--seconds", type=_positive, help="of a round and server (4; with the checkout of a peer 2)")
    add("--megabytes", type=_positive, default=970, help="size of the base image, in MiB (%(default)s)")
    add("--quick", action="store_true", help="show that everything runs; the figures mean nothing")
    add("--directory", type=Path, metavar="DIR", help="keep images and data there")
    add("--json", type=Path, metavar="FILE", help="write all measurements")
    options = parser.parse_args(arguments)
    unknown = set(options.server) - {SERVICE, NGINX, *(peer.name for peer in options.peer)}
    if unknown:
        parser.error(f"unknown server: {', '.join(sorted(unknown))}")
    return options


def effort(options: argparse.Namespace) -> Effort:
    """Return the effort of the run."""
    if options.quick:
        return QUICK
    has_checkout = any(peer.checkout for peer in options.peer)
    return Effort(
        rounds=options.rounds or (9 if has_checkout else 5),
        seconds=options.seconds or (2 if has_checkout else 4),
        megabytes=options.megabytes,
    )


def select(stage: Stage, patterns: list[str]) -> list[Comparison | Study]:
    """Return the scenarios whose names match a pattern; raises SystemExit if there are none."""
    every = list(scenarios(stage))
    selected = [each for each in every if any(fnmatchcase(each.name, pattern) for pattern in patterns or "*")]
    if not selected:
        raise SystemExit(f"no scenario matches {' or '.join(patterns)}; see --list")
    return selected


def running_peers(peers: list[Peer], pids: list[tuple[str, str]]) -> tuple[Server, ...]:
    """Return the servers that run already; one that is named twice has a URL for HTTP and one for HTTPS."""
    by_name: dict[str, dict[str, str]] = {}
    for peer in peers:
        if peer.url:
            by_name.setdefault(peer.name, {})[urlsplit(peer.url).scheme] = peer.url
    pid_of = {name: int(pid) for name, pid in pids}
    return tuple(Server(name, urls, pid_of.get(name)) for name, urls in by_name.items())


def measure(stage: Stage, selected: list[Comparison | Study], keep: Callable[[Document], object]) -> Document:
    """Run the scenarios; the name of each is printed to standard error.

    Args:
        keep: is called with what is measured so far, after each.
    """
    document = Document(machine=machine.describe(stage.directory), comparisons=[], findings=[])
    for scenario in selected:
        print(scenario.name, file=sys.stderr, flush=True)
        if isinstance(scenario, Comparison):
            effort = stage.effort
            result = run_comparison(scenario, stage.servers, effort.rounds, effort.seconds)
            document["comparisons"].append(result)
        else:
            document["findings"] += [figure.of(scenario.name) for figure in scenario.run(stage)]
        keep(document)
    if document["comparisons"]:
        document["machine"]["TLS"] = machine.negotiated(stage.servers)
    return document


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, at least 1")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=VALUE")
    return name, value


def _peer(text: str) -> Peer:
    name, value = _pair(text) if "=" in text else (DEFAULT_PEER, text)
    if "://" in value:
        return Peer(name, value, None)
    checkout = Path(value).resolve()
    if not (checkout / "image_service").is_dir():
        raise argparse.ArgumentTypeError(f"{value}: is neither a URL nor a checkout of this service")
    return Peer(name, None, checkout)


if __name__ == "__main__":
    main()
