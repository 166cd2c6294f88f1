"""The benchmark runs, and its output is well-formed; no test judges a speed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
import pytest

from bench import machine, report, soak, tenants
from bench.__main__ import Peer, effort, measure, parse
from bench.growth import DATABASES
from bench.results import RESULTS, Finding, Result, Target, load, meets, spread
from bench.scenarios import SCENARIOS
from bench.servers import NGINX, SERVICE, LeftOut
from bench.stage import SMALL, Effort, Stage
from bench.study import Figure, Study
from bench.wrk import NothingReceived
from tests.acceptance.clients import needs_client
from tests.acceptance.service import CHECKOUT
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance


def run(*arguments: str | Path) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_scenarios(pattern: str, directory: Path) -> tuple[list[Result], str]:
    """Return the results of scenarios with small numbers, and what the command printed."""
    results = directory / "results" / re.sub("[^A-Za-z0-9]", "", pattern)
    output = run("bench", "--directory", directory, "--scenario", pattern, "--results", results)
    return [json.loads(file.read_text()) for file in sorted(results.iterdir())], output


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the images from one run to the next."""
    path: Path = tmp_path_factory.mktemp("bench")
    return path


@pytest.mark.load
@pytest.mark.acceptance
@pytest.mark.parametrize(
    "pattern",
    [
        soaked("*whole image, 4 clients"),
        soaked("*cold page cache"),
        soaked("HTTP*, 64 KiB ranges, 16 connections"),
        soaked("*mount"),
        "*HEAD*",
    ],
)
def test_comparison_has_service_and_nginx(directory: Path, pattern: str) -> None:
    needs_client("wrk")
    needs_client("nginx")
    results, output = run_scenarios(pattern, directory)
    assert "Small numbers" in output
    for result in results:
        assert result["machine"]["CPU"]
        comparison = result["comparison"]
        assert set(comparison["servers"]) == {SERVICE, NGINX}
        assert comparison["servers"][SERVICE]["throughput"]["median"] > 0
        assert [(ratio["server"], ratio["base"]) for ratio in comparison["ratios"]] == [(SERVICE, NGINX)]
        assert comparison["ratios"][0]["throughput"]["median"] > 0
        assert comparison["ratios"][0]["cpu"]
        assert f"| {result['scenario']} | " in output


@pytest.mark.soak
@pytest.mark.acceptance
def test_checkout_of_a_peer_is_started_and_compared(directory: Path) -> None:
    needs_client("wrk")
    servers = (f"--peer=before={CHECKOUT}", f"--server={SERVICE}", "--server=before")
    scenarios = ("--scenario=*HEAD*", "--scenario=first request*")
    output = run("bench", "--directory", directory / "peer", *servers, *scenarios)
    assert f"| Scenario | {SERVICE} | before | {SERVICE} ÷ before: throughput | " in output
    assert "÷ before at least 0.95" in output
    assert "|  | time of it ÷ before | " in output


@pytest.mark.load
@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("pattern", "figures"),
    [
        ("first request*", {"CPU time of the server for it", "time of it beyond upstream's own"}),
        soaked("*slow readers*", {"refused or broken, of 50", "memory above idle (PSS)"}),
        soaked(
            "16 MiB of*",
            {"CPU of a 64 KiB range, moved ÷ in place", "others' ranges meanwhile, one file, p99"},
        ),
        soaked("*more connections", {"CPU of a request, 256 ÷ 16"}),
        soaked("*larger base image", {"CPU of a request, 2 GiB ÷ 1 GiB"}),
        soaked("*more workers", {"WORKERS=2 ÷ WORKERS=1", "WORKERS=2, CPU time"}),
        soaked("*more replicas", {"3 replicas ÷ 1", "3 replicas"}),
        soaked("memory growth", {"memory (PSS), caches full, at first", "the same, at last"}),
        soaked("verification*", {"statement and base digest: throughput ÷ sha256sum"}),
        soaked("convert raw to qcow2", {"throughput ÷ qemu-img"}),
        soaked("customize a CoreOS ISO", {"throughput ÷ coreos-installer", "CPU time ÷ coreos-installer"}),
        soaked("publish*", {"publish: throughput ÷ aws s3 cp", "fetch: CPU time ÷ aws s3 cp"}),
        soaked(
            "growth of first requests", {f"CPU of a first request, {name}, many ÷ few" for name in DATABASES}
        ),
        soaked("composes*", {"ISO: order to end, alone", "disk: 2 at once, in a minute"}),
        soaked("artifacts*", {"CPU time for a GiB", "status of a compose meanwhile, 95th percentile"}),
        soaked("a quiet tenant*", {"order to download, alone", "beside the noise ÷ alone"}),
    ],
)
def test_study_measures_its_figures(directory: Path, pattern: str, figures: set[str]) -> None:
    needs_client("wrk")
    needs_client("nginx")
    for result in run_scenarios(pattern, directory)[0]:
        left_out = result.get("left_out", "")
        if "not installed" in left_out or "needs root" in left_out:
            pytest.skip(left_out)
        assert not left_out
        findings = result["findings"]
        assert figures <= {finding["figure"] for finding in findings}
        for finding in findings:
            assert finding["value"]["least"] <= finding["value"]["median"] <= finding["value"]["greatest"]
            if finding["server"] == SERVICE and finding["figure"].startswith(("refused", "without progress")):
                assert finding["value"]["greatest"] == 0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(SMALL, tmp_path, stack)


def study(name: str, run: Callable[[Stage], Iterator[Figure]]) -> Study:
    return Study(name, lambda _: iter(()), run)


def test_scenario_is_measured_again_after_a_change_of_code_or_numbers(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def run(stage: Stage) -> Iterator[Figure]:
        measured.append(stage.effort.rounds)
        yield Figure(SERVICE, "figure", "", [len(measured)])

    def median(stage: Stage) -> float:
        (result,) = measure(stage, [study("one", run)], tmp_path / "results")
        return result["findings"][0]["value"]["median"]

    for commit, expected in (("abc", 1), ("abc", 1), ("def", 2), ("def+", 3), ("def+", 4), ("def", 5)):
        monkeypatch.setattr(machine, "code_commit", lambda commit=commit: commit)
        assert median(stage) == expected
    stage.effort = attrs.evolve(SMALL, rounds=21)
    assert [median(stage), median(stage)] == [6, 6]
    assert measured == [1] * 5 + [21]


def test_scenario_that_cannot_be_measured_keeps_its_result_and_the_others_run(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Stage) -> Iterator[Figure]:
        yield Figure(SERVICE, "figure", "", [1])

    def leave_out(_: Stage) -> Iterator[Figure]:
        raise LeftOut("there is no such client")

    monkeypatch.setattr(machine, "code_commit", lambda: "abc+")
    list(measure(stage, [study("one", run)], tmp_path))
    results = list(measure(stage, [study("one", leave_out), study("two", run)], tmp_path))
    rows = "\n".join(report.lines(results))
    assert "| one | left out: there is no such client |" in rows
    assert "| two | figure | 1.00 |" in rows
    kept = load(tmp_path, "one")
    assert kept
    assert kept["findings"]
    assert [*measure(stage, [study("three", leave_out)], tmp_path)] == [load(tmp_path, "three")]


@pytest.mark.parametrize("longer", [attrs.evolve(SMALL, full=True), attrs.evolve(SMALL, seconds=2)])
def test_server_that_sends_nothing_ends_the_run_unless_it_was_one_second_long(
    stage: Stage, longer: Effort
) -> None:
    def receive_nothing(_: Stage) -> Iterator[Figure]:
        raise NothingReceived("nothing")

    scenario = Study("one", receive_nothing)
    (result,) = measure(stage, [scenario], None)
    assert result["left_out"].startswith("nothing: ")
    stage.effort = longer
    with pytest.raises(NothingReceived):
        list(measure(stage, [scenario], None))


def test_commit_is_that_of_the_measured_code() -> None:
    assert re.fullmatch("([0-9a-f]{8,}|no commit)[+]?", machine.code_commit())


def test_page_names_each_scenario() -> None:
    page = (CHECKOUT / "docs" / "performance.md").read_text()
    assert [scenario.name for scenario in SCENARIOS if scenario.name not in page] == []


@pytest.mark.parametrize("option", ["--server=nginx", f"--peer={CHECKOUT}"])
def test_results_are_of_all_servers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--results=x", option])
    assert "leave out --server and --peer" in capsys.readouterr().err


def test_page_is_that_of_the_results() -> None:
    page = (CHECKOUT / "docs" / "performance.md").read_text()
    assert page == report.render_page(), "generate it with: make docs"


def test_each_file_of_results_is_a_scenario_with_full_numbers() -> None:
    found = [result for scenario in SCENARIOS if (result := load(RESULTS, scenario.name))]
    assert len(found) == len(list(RESULTS.iterdir()))
    assert all(result["effort"].get("full", True) for result in found)


def test_memory_growth_is_reported_as_a_slope() -> None:
    memory = [100.0, 102.0, 104.0, 106.0]
    readings = [
        soak.MemoryReading(ranges=number * 100_000, infra_envs=number, memory_mib=value)
        for number, value in enumerate(memory, 1)
    ]
    figures = list(soak.verdict(readings))
    assert [list(figure.values) for figure in figures] == [[100.0], [106.0], [2.0]]
    assert not meets(spread(figures[-1].values), figures[-1].target)


def test_target_is_met_or_missed() -> None:
    assert meets(spread([1.0, 2.0, 9.0]), Target(at_least=2.0))
    assert not meets(spread([1.0, 2.0, 9.0]), Target(at_least=2.1))
    assert meets(spread([1.0, 2.0, 9.0]), Target(at_most=2.0))
    assert not meets(spread([1.0, 2.0, 9.0]), Target(at_most=1.9))


def test_figure_of_several_servers_is_one_row() -> None:
    def finding(server: str, value: list[float], target: Target) -> Finding:
        return Finding(server=server, figure="c", unit="ms", value=spread(value), target=target)

    result = Result(
        scenario="a",
        commit="abc",
        date="2026-11-27",
        effort={},
        load_average=3.25,
        machine={"CPU": "x"},
        findings=[finding("b", [1, 2, 30], Target(at_most=1)), finding("other", [0, 0, 0], Target())],
    )
    lines = list(report.lines([result, result]))
    assert lines[0] == "- abc, 2026-11-27: CPU: x"
    row = "| a | c | 2.00 (1.00 to 30.0) ms; other 0 ms | at most 1: missed | abc, 2026-11-27, load 3.25 |"
    assert lines[-2:] == [row] * 2


def test_scenario_names_are_unique() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize(
    ("option", "status", "message"),
    [("--scenario", 1, "no scenario matches nothing"), ("--server", 2, "unknown server: nothing")],
)
def test_unknown_name_is_reported(option: str, status: int, message: str) -> None:
    command = [sys.executable, "-m", "bench", "--list", option, "nothing"]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert message in result.stderr


@pytest.mark.parametrize("effort", ["--rounds=0", "--seconds=-1", "--megabytes=x"])
def test_effort_below_one_is_refused(effort: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([effort])
    assert caught.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_peer_is_a_checkout_or_a_running_server(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(
        [f"--peer={CHECKOUT}", f"--peer=old={CHECKOUT}", "--peer=other=http://h/x", "--server=old"]
    )
    assert options.peer == [
        Peer("peer", None, CHECKOUT),
        Peer("old", None, CHECKOUT),
        Peer("other", "http://h/x", None),
    ]
    assert effort(options) == SMALL
    assert effort(parse([f"--peer={CHECKOUT}", "--full", "--seconds=3"])).rounds == 9
    with pytest.raises(SystemExit):
        parse(["--peer=/nowhere"])
    assert "neither a URL nor a checkout" in capsys.readouterr().err


def test_bench_imports_nothing_of_tests() -> None:
    """Except for what measures a jobs role, which it starts as the tests do."""
    measuring_roles = {
        CHECKOUT / "bench" / name for name in ("composes.py", "queued_composes.py", "tenants.py")
    }
    for path in {*(CHECKOUT / "bench").glob("*.py")} - measuring_roles:
        assert not re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE), path


def test_quiet_tenant_is_compared_with_itself_alone() -> None:
    measured = tenants.Measurement(
        alone=[1, 2, 9],
        beside=[4, 7],
        requests=[0.1] * 98 + [2.5, 8],
        memory={"role": 200 * 2**20, "engine": 400 * 2**20},
        stored=2**20,
        share=None,
    )
    values = {
        figure.what: (spread(figure.values), meets(spread(figure.values), figure.target))
        for figure in tenants.figures(measured)
    }
    assert values["beside the noise ÷ alone"] == (spread([2, 3.5]), True)
    assert values["requests, 99th percentile"][0]["median"] == 8
    assert values["memory"] == (spread([200]), True)
    assert not values["memory with the engine"][1]
