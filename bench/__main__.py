"""This service beside nginx, and beside any peer, in one run: ``make bench``, or ``python -m bench``.

All serve the same base image over loopback: nginx as a plain file, this service customized, one process each.
They are measured in turn, round after round, so that other load of the machine affects all of them. The
ratios of one round count; absolute figures hold for the machine and the minute only.

Small numbers only show that each scenario runs, all of them in ten minutes. --full takes those of
docs/performance.md. With --results, each scenario is written to a file of its own when it ends, and one whose
code and numbers are those of its file is not measured again, so that a run which was ended goes on:

    python -m bench --list
    python -m bench --full --scenario 'HTTP, 64 KiB ranges, 16 connections'
    python -m bench --full --results bench/results                         # make bench-full
    python -m bench --full --scenario '*64 KiB*' --rounds 3 --seconds 2
    python -m bench --full --scenario 'HTTPS, whole*' --server image-service

To compare with another commit, give its checkout, whose service has data of its own:

    git worktree add ../before 4fc9d8a
    python -m bench --full --peer before=../before --server image-service --server before

The interpreter of its .venv starts it, or without one that of this process. So a checkout of the same commit
with another .venv compares interpreters.

A peer may also be any server that runs already: --peer before=http://127.0.0.1:8080/… --peer-pid before=1234

--directory DIR keeps the images between runs, which then start sooner.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench import machine, report
from bench.comparison import Comparison
from bench.results import Result, load, save
from bench.scenarios import SCENARIOS
from bench.servers import NGINX, SERVICE, LeftOut, Server, stop_on_sigterm
from bench.stage import FULL, SMALL, Effort, Selection, Stage
from bench.wrk import NothingReceived

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    selected = select(options.scenario)
    if options.list:
        print("\n".join(scenario.name for scenario in selected))
        return
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
        results = list(measure(stage, selected, options.results))
    print("\n".join(report.lines(results)))


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
    add("--full", action="store_true", help="with the numbers of docs/performance.md")
    add("--rounds", type=_positive, help="of each scenario (1; full 5, with the checkout of a peer 9)")
    add("--seconds", type=_positive, help="of a round and server (1; full 4, with the checkout of a peer 2)")
    add("--megabytes", type=_positive, help="size of the base image, in MiB (16; full 970)")
    add("--directory", type=Path, metavar="DIR", help="keep images and data there")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="write a JSON file for each scenario there; only with all servers and no peer",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.server) - {SERVICE, NGINX, *(peer.name for peer in options.peer)}
    if unknown:
        parser.error(f"unknown server: {', '.join(sorted(unknown))}")
    if options.results and (options.server or options.peer):
        parser.error("--results is of all servers and no peer: leave out --server and --peer")
    return options


def effort(options: argparse.Namespace) -> Effort:
    """Return the effort of the run."""
    usual = FULL if options.full else SMALL
    if options.full and any(peer.checkout for peer in options.peer):
        usual = attrs.evolve(usual, rounds=9, seconds=2)
    given = {name: getattr(options, name) for name in ("rounds", "seconds", "megabytes")}
    return attrs.evolve(usual, **{name: number for name, number in given.items() if number})


def select(patterns: list[str]) -> list[Comparison | Study]:
    """Return the scenarios whose names match a pattern; raises SystemExit if there are none."""
    selected = [
        each for each in SCENARIOS if any(fnmatchcase(each.name, pattern) for pattern in patterns or "*")
    ]
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


def measure(stage: Stage, selected: Sequence[Comparison | Study], directory: Path | None) -> Iterator[Result]:
    """Measure scenarios, and say on standard error which.

    Args:
        stage: of the run.
        selected: scenarios.
        directory: of results; one that it has of the same code and effort is not measured again, and none
            is replaced by one that is left out.
    """
    commit, wanted = machine.code_commit(), attrs.asdict(stage.effort)
    is_committed = commit.isalnum()
    for scenario in selected:
        known = load(directory, scenario.name) if directory else None
        measured = known if known and "left_out" not in known else None
        if measured and is_committed and (measured["commit"], measured["effort"]) == (commit, wanted):
            yield measured
            continue
        print(scenario.name, file=sys.stderr, flush=True)
        result = Result(
            scenario=scenario.name,
            commit=commit,
            date=datetime.now(UTC).date().isoformat(),
            effort=wanted,
            load_average=round(os.getloadavg()[0], 1),
            machine=machine.describe(stage.directory),
        )
        try:
            if isinstance(scenario, Comparison):
                result["comparison"] = scenario.measure(stage)
                result["machine"]["TLS"] = machine.negotiated(stage.servers)
            else:
                result["findings"] = scenario.measure(stage)
        except LeftOut as reason:
            result["left_out"] = str(reason)
        except NothingReceived as reason:
            if stage.effort.full or stage.effort.seconds > 1:
                raise
            result["left_out"] = f"{reason}: one second is too short, or the server is broken"
        if directory and not ("left_out" in result and measured):
            save(directory, result)
        yield result


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
