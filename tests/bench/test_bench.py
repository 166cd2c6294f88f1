"""The benchmark runs, and its output is well-formed; no test judges a speed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import pytest

from bench import report, soak, tenants
from bench.__main__ import Peer, effort, parse
from bench.results import Document, Finding, Target, meets, spread
from bench.scenarios import scenarios
from bench.servers import NGINX, SERVICE
from bench.stage import QUICK, Stage
from tests.acceptance.clients import needs_client
from tests.acceptance.service import CHECKOUT
from tests.variants import soaked

if TYPE_CHECKING:
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


def rows(output: str) -> dict[str, list[str]]:
    """The cells of each line of the tables, by the first of them."""
    cells = [line[2:-2].split(" | ") for line in output.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in cells}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the images from one run to the next."""
    path: Path = tmp_path_factory.mktemp("bench")
    return path


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
    written = directory / "comparison.json"
    output = run("bench", "--quick", "--directory", directory, "--scenario", pattern, "--json", written)
    document = cast("Document", json.loads(written.read_text()))
    assert document["comparisons"]
    assert document["machine"]["CPU"]
    for result in document["comparisons"]:
        assert set(result["servers"]) == {SERVICE, NGINX}
        assert result["servers"][SERVICE]["gigabytes_per_second"]["least"] > 0
        assert [(ratio["server"], ratio["base"]) for ratio in result["ratios"]] == [(SERVICE, NGINX)]
        assert result["ratios"][0]["throughput"]["median"] > 0
        assert result["ratios"][0]["cpu"]
        assert len(rows(output)[result["scenario"]]) == 5
    assert run("bench.report", written) == output


@pytest.mark.soak
@pytest.mark.acceptance
def test_checkout_of_a_peer_is_started_and_compared(directory: Path) -> None:
    needs_client("wrk")
    written = directory / "peer.json"
    scenarios = ("--scenario", "*HEAD*", "--scenario", "first request*")
    servers = ("--peer", f"before={CHECKOUT}", "--server", SERVICE, "--server", "before")
    output = run("bench", "--quick", "--directory", directory, *scenarios, *servers, "--json", written)
    document = cast("Document", json.loads(written.read_text()))
    (heads,) = document["comparisons"]
    assert set(heads["servers"]) == {SERVICE, "before"}
    assert [(ratio["server"], ratio["base"]) for ratio in heads["ratios"]] == [(SERVICE, "before")]
    assert "÷ before at least 0.95" in rows(output)[heads["scenario"]][-1]
    assert "time of it ÷ before" in {finding["figure"] for finding in document["findings"]}


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("pattern", "figures"),
    [
        ("first request*", {"CPU time of the server for it", "time of it beyond upstream's own"}),
        soaked("*, 50 readers*", {"refused or broken", "without progress", "memory above idle (PSS)"}),
        soaked("16 MiB of*", {"CPU of a 64 KiB range, moved ÷ in place", "others' ranges meanwhile, p99"}),
        soaked("*more connections", {"CPU of a request, 256 ÷ 16"}),
        soaked("*larger base image", {"CPU of a request, 2 GiB ÷ 1 GiB"}),
        soaked("*more workers", {"WORKERS=2 ÷ WORKERS=1", "WORKERS=2, CPU time"}),
        soaked("*more replicas", {"3 replicas ÷ 1", "3 replicas"}),
    ],
)
def test_study_measures_its_figures(directory: Path, pattern: str, figures: set[str]) -> None:
    needs_client("wrk")
    needs_client("nginx")
    written = directory / "study.json"
    run("bench", "--quick", "--directory", directory, "--scenario", pattern, "--json", written)
    findings = [each for each in json.loads(written.read_text())["findings"] if each["server"] == SERVICE]
    assert figures <= {finding["figure"] for finding in findings}
    for finding in findings:
        assert finding["value"]["least"] <= finding["value"]["median"] <= finding["value"]["greatest"]
        if finding["figure"] in {"refused or broken", "without progress"}:
            assert finding["value"]["greatest"] == 0


@pytest.mark.acceptance
def test_soak_measures_memory_and_its_slope(tmp_path: Path) -> None:
    written = tmp_path / "soak.json"
    few = ("--ranges", "2000", "--infra-envs", "20", "--warm-up", "2", "--parts", "4", "--megabytes", "16")
    run("bench.soak", *few, "--json", written)
    document = json.loads(written.read_text())
    assert [reading["infra_envs"] for reading in document["readings"]] == [5, 10, 15, 20]
    assert document["readings"][-1]["ranges"] >= 2000
    assert all(reading["memory_mib"] > 0 for reading in document["readings"])
    assert {finding["unit"] for finding in document["findings"]} == {"MiB"}


def test_memory_growth_is_reported_as_a_slope() -> None:
    memory = [100.0, 102.0, 104.0, 106.0]
    readings = [
        soak.MemoryReading(ranges=number * 100_000, infra_envs=number, memory_mib=value)
        for number, value in enumerate(memory, 1)
    ]
    figures = list(soak.verdict(readings))
    assert [list(figure.values) for figure in figures] == [[100.0, 102.0, 104.0, 106.0], [6.0], [2.0]]
    assert not meets(spread(figures[-1].values), figures[-1].target)


def test_target_is_met_or_missed() -> None:
    assert meets(spread([1.0, 2.0, 9.0]), Target(at_least=2.0))
    assert not meets(spread([1.0, 2.0, 9.0]), Target(at_least=2.1))
    assert meets(spread([1.0, 2.0, 9.0]), Target(at_most=2.0))
    assert not meets(spread([1.0, 2.0, 9.0]), Target(at_most=1.9))


def test_findings_of_several_runs_are_one_table() -> None:
    finding = Finding(
        scenario="a", server="b", figure="c", unit="ms", value=spread([1, 2, 30]), target=Target(at_most=1)
    )
    documents = [Document(machine={"CPU": "x"}, comparisons=[], findings=[finding]) for _ in range(2)]
    lines = list(report.lines(report.merged(documents)))
    assert lines[0] == "- CPU: x"
    assert lines[-2:] == ["| a | b | c | 2.00 (1.00 to 30.0) ms | at most 1: missed |"] * 2


def test_scenario_names_are_unique(tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = [scenario.name for scenario in scenarios(Stage(QUICK, tmp_path, stack))]
    assert len(set(names)) == len(names)


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


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_invalid_result_file_is_reported(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(sys, "argv", ["report", str(file)])
    with pytest.raises(SystemExit) as caught:
        report.main()
    assert caught.value.code == 2
    assert "not a file that --json wrote" in capsys.readouterr().err


def test_peer_is_a_checkout_or_a_running_server(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(
        [f"--peer={CHECKOUT}", f"--peer=old={CHECKOUT}", "--peer=other=http://h/x", "--server=old"]
    )
    assert options.peer == [
        Peer("peer", None, CHECKOUT),
        Peer("old", None, CHECKOUT),
        Peer("other", "http://h/x", None),
    ]
    assert effort(options).rounds == 9
    with pytest.raises(SystemExit):
        parse(["--peer=/nowhere"])
    assert "neither a URL nor a checkout" in capsys.readouterr().err


def test_bench_imports_nothing_of_tests() -> None:
    """Except for what measures a jobs role, which it starts as the tests do."""
    measuring_roles = {CHECKOUT / "bench" / name for name in ("composes.py", "tenants.py")}
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


@pytest.mark.soak
def test_quiet_tenant_is_measured_beside_noisy_ones() -> None:
    output = run("bench.tenants", "--seconds", "5", "--images", "1", "--clients", "1")
    assert "order to download, alone" in output
    assert "beside the noise ÷ alone" in output


@pytest.mark.soak
def test_composes_of_one_worker_are_counted() -> None:
    output = run("bench.composes", "--alone", "1", "--at-once", "2")
    assert "ISO: order to end, alone" in output
    assert "disk: 2 at once, in a minute" in output
