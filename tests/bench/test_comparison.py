"""Comparisons of servers in rounds."""

from __future__ import annotations

import pytest

from bench import report
from bench.comparison import Comparison, run_comparison
from bench.results import Document, Target
from bench.servers import NGINX, SERVICE, Server
from bench.wrk import Traffic

REQUESTS = {SERVICE: 300, NGINX: 600, "before": 100}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    monkeypatch.setattr(Server, "size_bytes", lambda *_: 1000)
    return [Server(name, {"http": name}, None) for name in REQUESTS]


def generate(url: str, _size_bytes: int, seconds: int) -> Traffic:
    return Traffic(REQUESTS[url] * seconds, 0, seconds)


def test_ratios_are_to_nginx_and_of_the_service_to_peers(servers: list[Server]) -> None:
    comparison = Comparison("a", "http", generate, throughput_target=Target(at_least=0.6))
    result = run_comparison(comparison, servers, rounds=3, seconds=2)
    ratios = {(each["server"], each["base"]): each for each in result["ratios"]}
    medians = {pair: each["throughput"]["median"] for pair, each in ratios.items()}
    assert medians == {(SERVICE, NGINX): 0.5, ("before", NGINX): pytest.approx(1 / 6), (SERVICE, "before"): 3}
    assert ratios[SERVICE, NGINX]["throughput_target"] == {"at_least": 0.6}
    assert ratios["before", NGINX]["throughput_target"] == {}
    assert ratios[SERVICE, "before"]["throughput_target"] == {"at_least": 0.95}
    *_, row = report.lines(Document(machine={}, comparisons=[result], findings=[]))
    assert "÷ nginx at least 0.6: missed; ÷ before at least 0.95: met" in row


def test_servers_without_the_scheme_are_left_out(servers: list[Server]) -> None:
    result = run_comparison(Comparison("a", "https", generate), servers, rounds=1, seconds=1)
    assert (result["servers"], result["ratios"]) == ({}, [])
