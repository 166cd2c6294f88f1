"""Comparisons of servers in rounds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs
import pytest

from bench import report
from bench.comparison import Comparison
from bench.results import Result, Target
from bench.servers import NGINX, SERVICE, Server
from bench.stage import SMALL, Stage
from bench.wrk import Traffic

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = {SERVICE: 300, NGINX: 600, "before": 100}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.setattr(Server, "size_bytes", lambda *_: 1000)
    monkeypatch.setattr(Stage, "image", tmp_path)
    monkeypatch.setattr(Stage, "servers", tuple(Server(name, {"http": name}, None) for name in REQUESTS))
    return Stage(attrs.evolve(SMALL, rounds=3), tmp_path, ExitStack())


def generate(url: str, _size_bytes: int, seconds: int) -> Traffic:
    return Traffic(REQUESTS[url] * seconds, 0, seconds)


def test_ratios_are_to_nginx_and_of_the_service_to_peers(stage: Stage) -> None:
    comparison = Comparison("a", "http", generate, throughput_target=Target(at_least=0.6))
    result = comparison.measure(stage)
    ratios = {(each["server"], each["base"]): each for each in result["ratios"]}
    medians = {pair: each["throughput"]["median"] for pair, each in ratios.items()}
    assert medians == {(SERVICE, NGINX): 0.5, ("before", NGINX): pytest.approx(1 / 6), (SERVICE, "before"): 3}
    assert ratios[SERVICE, NGINX]["throughput_target"] == {"at_least": 0.6}
    assert ratios["before", NGINX]["throughput_target"] == {}
    assert ratios[SERVICE, "before"]["throughput_target"] == {"at_least": 0.95}
    whole = Result(scenario="a", commit="", date="", effort={}, machine={}, comparison=result)
    *_, row = report.lines([whole])
    assert "÷ nginx at least 0.6: missed; ÷ before at least 0.95: met" in row


def test_servers_without_the_scheme_are_left_out(stage: Stage) -> None:
    result = Comparison("a", "https", generate).measure(stage)
    assert (result["servers"], result["ratios"]) == ({}, [])
