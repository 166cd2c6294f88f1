"""The command line, and its faults."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.cli import main
from image_service.cli.loadtest import add
from image_service.tools.loadtest.options import OptionsError, parse_duration, parse_options
from image_service.tools.loadtest.traffic.profiles import Profile

if TYPE_CHECKING:
    from image_service.tools.loadtest.options import LoadTestOptions

REQUEST = Path(__file__).parents[3] / "conf" / "jobs-grafana-dashboard.json"  # a JSON object
TEMPLATE = "http://h/byid/{infra_env}/4.17/x86_64/full.iso"


def read(*arguments: str) -> LoadTestOptions:
    parser = argparse.ArgumentParser()
    add(lambda *_, **__: parser)
    return parse_options(parser.parse_args(arguments))


def test_one_url_is_enough() -> None:
    options = read("http://h:8080/full.iso")
    plan = options.plan_for(options.infra_envs)
    assert [target.path for target in plan.targets] == ["/full.iso"]
    assert (plan.profile, plan.clients, plan.seconds, plan.checks) == (Profile.MOUNT, 16, 30, 1)
    assert (plan.requests_per_second, plan.bytes_per_second) == (None, None)


def test_files_hold_urls_infra_envs_and_fields(tmp_path: Path) -> None:
    urls, infra_envs, fields = (tmp_path / name for name in ("urls", "infra-envs", "fields"))
    urls.write_text(f"{TEMPLATE}\n# end\n")
    infra_envs.write_text("a\nb\n")
    fields.write_text("Authorization: Bearer top-secret\nX-Empty:\n")
    arguments = (f"--urls={urls}", f"--infra-envs={infra_envs}", f"--header=@{fields}", "--header=A: b")
    options = read("http://h/full.iso", *arguments)
    plan = options.plan_for(options.infra_envs)
    paths = ["/full.iso", "/byid/a/4.17/x86_64/full.iso", "/byid/b/4.17/x86_64/full.iso"]
    assert [target.path for target in plan.targets] == paths
    assert plan.fields == (("Authorization", "Bearer top-secret"), ("X-Empty", ""), ("A", "b"))
    assert "top-secret" not in repr(options)


def test_infra_envs_are_registered_for_the_build_of_the_url() -> None:
    options = read(TEMPLATE, "--infra-envs=7", "--api=http://a:8090/")
    assert (options.register, options.build, options.api) == (7, ("4.17", "x86_64"), "http://a:8090")


@pytest.mark.parametrize(
    ("arguments", "requests", "byte_count"),
    [(("--rate=20/s",), 20, None), (("--rate=10KiB/s", "--profile=download"), None, 10240)],
)
def test_rate_is_recognized_by_its_unit(
    arguments: tuple[str, ...], requests: float | None, byte_count: float | None
) -> None:
    plan = read("http://h/x", *arguments).plan
    assert (plan.requests_per_second, plan.bytes_per_second) == (requests, byte_count)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "a URL is required"),
        (("http://h",), "URL 1: must be an http or https URL"),
        ((TEMPLATE,), "{infra_env} is in a URL: --infra-envs must provide the identifiers"),
        (("http://h/x", "--infra-envs=3", "--api=http://a"), "--infra-envs: no URL has {infra_env} in it"),
        ((TEMPLATE, "--infra-envs=3"), "--infra-envs: a number needs --api"),
        ((TEMPLATE, "--infra-envs=0", "--api=http://a"), "--infra-envs: must be a whole number"),
        (("http://h/x", "--api=http://a"), "--api: needs --infra-envs with the number"),
        (("http://h/{infra_env}", "--infra-envs=1", "--api=http://a"), "--infra-envs: names no version"),
        (("http://h/x", "--urls=/nowhere"), "--urls: No such file or directory"),
        (("http://h/x", "--urls=/dev/null"), "--urls: has no entry"),
        (("http://h/x", "--slo=p99"), "--slo 'p99': must be as p99<200ms"),
        (("http://h/x", "--clients=0"), "--clients: must be a whole number, from 1"),
        (("http://h/x", "--duration=soon"), "--duration: must be a time"),
        (("http://h/x", "--timeout=0s"), "--timeout: must be a time"),
        (("http://h/x", "--check=-1"), "--check: must be a whole number, from 0"),
        (("http://h/x", "--rate=5"), "--rate: must be requests per second as 20/s"),
        (("http://h/x", "--rate=5kB/s"), "--rate: bytes per second need --profile download"),
        (("http://h/x", f"--compose={REQUEST}"), "--compose: needs --profile composer"),
        (("http://h/x", "--profile=composer", "--compose=/dev/null"), "--compose: must be a file of a JSON"),
        (("http://h/x", "--header=top-secret"), "--header: must be as 'Name: value'"),
        (("http://h/x", "--header=A: top-secret\r\nB: c"), "--header: must be as 'Name: value'"),
        (("http://h/x", "--header=Range: bytes=0-1"), "--header: Range is set by the load test itself"),
        (("http://h/x", "--report=/dev/null/x"), "--report: must be a writable directory"),
        (("http://h/x", "--cacert=/dev/null"), "--cacert: must be a file of certificates"),
    ],
)
def test_each_fault_is_reported(arguments: tuple[str, ...], fault: str) -> None:
    with pytest.raises(OptionsError) as refused:
        read(*arguments)
    assert str(refused.value).startswith(fault)
    assert "\n" not in str(refused.value)
    assert "top-secret" not in str(refused.value)


def test_all_faults_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["loadtest", "ftp://h/top-secret", "--slo=x", "--slo=y", "--clients=many"])
    reported = capsys.readouterr().err.splitlines()
    assert status == 2
    assert [line.split(": ")[:2] for line in reported] == [
        ["image-service", "URL 1"],
        ["image-service", "--slo 'x'"],
        ["image-service", "--slo 'y'"],
        ["image-service", "--clients"],
    ]
    assert "top-secret" not in str(reported)


def test_unresolvable_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "http://server.invalid/x"]) == 2  # RFC 6761: no server has this name
    assert "cannot resolve http://server.invalid: " in capsys.readouterr().err


def test_host_that_no_server_can_have_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", f"http://{'a' * 64}/x"]) == 2
    assert "URL 1: must have a host name of at most 253 characters" in capsys.readouterr().err


def test_missing_extra_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "image_service.tools.loadtest.command", None)
    assert main(["loadtest", "http://h/x"]) == 1
    assert "install the wheel with its extra loadtest" in capsys.readouterr().err


@given(st.floats(0.001, 1000).map(lambda value: round(value, 3)), st.sampled_from(("", "s", "m", "h")))
def test_duration_is_parsed(value: float, unit: str) -> None:
    seconds = value * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]
    if seconds <= 7 * 24 * 3600 and seconds > 0:
        assert parse_duration(f"{value:.3f}{unit}") == pytest.approx(seconds)
    else:
        with pytest.raises(ValueError, match="at most a week"):
            parse_duration(f"{value:.3f}{unit}")


def test_profile_choices_are_shown_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("http://h/x", "--profile=other")
    reported = capsys.readouterr().err  # quoted or not, as the version of Python has it
    assert "download" in reported
    assert "Profile." not in reported
