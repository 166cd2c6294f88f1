"""The options of a fleet."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from image_service.cli.loadtest import add
from image_service.tools.loadtest.fleet.command import parse_fleet_options
from image_service.tools.loadtest.fleet.fleet_run import FleetPlan
from image_service.tools.loadtest.options import OptionsError, parse_options

if TYPE_CHECKING:
    from image_service.tools.loadtest.fleet.command import FleetOptions


def arguments(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add(lambda *_, **__: parser)
    return parser.parse_args(options)


def read(*options: str) -> FleetOptions:
    return parse_fleet_options(arguments("--profile=ztp-3500", *options))


def test_a_fleet_needs_no_option() -> None:
    options = read()
    assert options.fleet == FleetPlan(
        hosts=3500, infra_envs=700, ranges=3000, start_seconds=600.0, outage_seconds=60.0
    )
    assert options.seconds == 2700.0


def test_a_fleet_may_be_smaller() -> None:
    options = read("--clients=20", "--infra-envs=4", "--ranges=5", "--start=1s", "--outage=2s")
    assert options.fleet == FleetPlan(hosts=20, infra_envs=4, ranges=5, start_seconds=1.0, outage_seconds=2.0)


def test_hosts_may_read_at_a_rate() -> None:
    assert read().requests_per_second is None
    assert read("--rate=0.25/s").requests_per_second == 0.25
    assert read().bytes_per_second is None
    assert read("--rate=250kB/s").bytes_per_second == 250_000


def test_all_faults_are_reported() -> None:
    with pytest.raises(OptionsError) as raised:
        read("http://h/full.iso", "--api=http://h", "--clients=9", "--ranges=3001", "--outage=x")
    lines = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["URL", "--api", "--clients", "--ranges", "--outage"]


def test_options_of_a_fleet_need_its_profile() -> None:
    with pytest.raises(OptionsError, match="--ranges, --start, --outage: need --profile ztp-3500"):
        parse_options(arguments("http://h/full.iso", "--outage=1s"))
