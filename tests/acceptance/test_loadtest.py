"""The load test as users start it: against the real service, and against servers with one mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service import __version__
from tests import forks
from tests.acceptance.service import INFRA_ENVS, Service, os_image, run_service
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.tools.loadtest.wrong_server import Reply, serving
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate
    from tests.tools.loadtest.wrong_server import Mistake

pytestmark = [pytest.mark.acceptance, pytest.mark.load]

VERSION = "4.17"
TOKEN = "top-secret-of-the-api"
TEMPLATE = f"/byid/{{infra_env}}/{VERSION}/x86_64/full.iso"
COMMAND = (sys.executable, "-m", "image_service.cli", "loadtest")
MOST_SECONDS = 30
ENOUGH_REQUESTS = 60
"""More than any server here answers correctly before its mistake."""


@attrs.frozen
class Result:
    """The results of a load test."""

    status: int
    output: str
    report: dict[str, Any]


@attrs.frozen
class LoadTest:
    """Runs load tests that report to a directory."""

    directory: Path

    def run(self, *arguments: str) -> Result:
        """Run one to its end; for half a second by default."""
        options = ("--clients=4", "--duration=0.5s", f"--report={self.directory}")
        command = (*COMMAND, *options, *arguments)
        environment = os.environ | {"STANDALONE_TOKEN": TOKEN}
        ran = forks.run(command, env=environment)
        return self.ran(ran.returncode, ran.stdout, ran.stderr)

    def run_enough(self, *arguments: str, seconds: float = 0.5) -> Result:
        """Run one to its end; for longer if a busy machine makes few requests meanwhile."""
        ran = self.run(*arguments, f"--duration={seconds}s")
        counts = ran.report["counts"]
        requests = counts["requests"] + sum(counts["errors"].values())
        if requests < ENOUGH_REQUESTS and seconds < MOST_SECONDS:
            return self.run_enough(*arguments, seconds=4 * seconds)
        return ran

    def ran(self, status: int, output: str, errors: str) -> Result:
        """Read what it wrote."""
        assert errors == ""
        assert (self.directory / "report.html").read_text().startswith("<!doctype html>")
        return Result(status, output, json.loads((self.directory / "report.json").read_text()))


@pytest.fixture
def load_test(tmp_path: Path) -> LoadTest:
    return LoadTest(tmp_path / "report")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("service")
    base = directory / "base.iso"
    base.write_bytes(live_iso_with_minimal())
    environment = {"STANDALONE_TOKEN": TOKEN}
    images = [os_image(base, VERSION)]
    with run_service(directory, images, certificate=certificate, environment=environment) as running:
        yield running


@pytest.mark.parametrize("profile", ["mount", soaked("boot"), "download"])
def test_load_test_of_the_service_passes(load_test: LoadTest, service: Service, profile: str) -> None:
    ran = load_test.run(
        f"{service.url}{TEMPLATE}",
        *("--infra-envs=3", f"--api={service.api_url}", f"--cacert={service.ca}", f"--profile={profile}"),
        *("--slo=errors<=0", "--slo=first-request.max<=1m", "--check=2", "--header=X-Key: top-secret-field"),
        "--duration=4s",  # for the first requests of a new service, on a busy machine too
    )
    assert ran.status == 0, ran.output
    assert ran.report["passed"]
    assert ran.report["counts"]["requests"] > 3
    assert ran.report["timings"]["first-request"]["count"] == 3
    checks = ran.report["verification"]["whole_images"]
    assert [check["outcome"] for check in checks] == ["equal", "equal"]
    assert ran.report["verification"]["blocks_compared"] > 0
    left = service.ask_api(INFRA_ENVS).body
    assert b"loadtest" not in left
    html = (load_test.directory / "report.html").read_text()
    assert "top-secret" not in f"{ran.output}{ran.report}{html}"


def test_untrusted_certificate_ends_the_load_test_before_it_reads(
    load_test: LoadTest, service: Service
) -> None:
    ran = load_test.run(service.url + TEMPLATE.format(infra_env="x"))
    assert ran.status == 1
    assert set(ran.report["counts"]["errors"]) == {"tls-untrusted"}
    assert "tls-untrusted: no trusted authority issued the certificate; --cacert FILE" in ran.output


def test_api_that_registers_no_infra_env_is_reported(service: Service) -> None:
    template = f"http://127.0.0.1:1{TEMPLATE}"
    command = (*COMMAND, template, "--infra-envs=1", f"--api={service.api_url}")
    ran = forks.run(command)
    assert ran.returncode == 1
    assert ran.stderr.startswith("image-service: the API refused to register an infra-env: status 401")


def correct(reply: Reply) -> Reply:
    return reply


def wrong_bytes(reply: Reply) -> Reply:
    wrong = reply.number % 20 == 19 and not reply.is_digest
    return attrs.evolve(reply, body=b"?" + reply.body[1:]) if wrong else reply


def wrong_parts(reply: Reply) -> Reply:
    return wrong_bytes(reply) if reply.status == HTTPStatus.PARTIAL_CONTENT else reply


def other_etag(reply: Reply) -> Reply:
    return with_fields(reply, ETag='"other"') if reply.number % 20 == 19 else reply


def other_range(reply: Reply) -> Reply:
    return with_fields(reply, **{"Content-Range": "bytes 0-4095/300000"}) if reply.status == 206 else reply


def whole_image(reply: Reply) -> Reply:
    return attrs.evolve(reply, status=200)


def other_digest(reply: Reply) -> Reply:
    return attrs.evolve(reply, body=b"0" + reply.body[1:]) if reply.is_digest else reply


def with_fields(reply: Reply, **fields: str) -> Reply:
    return attrs.evolve(reply, fields={**reply.fields, **fields})


@pytest.mark.parametrize(
    ("mistake", "profile", "fault"),
    [
        (wrong_parts, "mount", "bytes-differ"),
        (wrong_bytes, "download", "bytes-differ"),
        (other_etag, "mount", "etag-changed"),
        (other_range, "mount", "content-range"),
        (whole_image, "mount", "range-ignored"),
        (other_digest, "download", "digest-differs"),
    ],
)
def test_wrong_bytes_fail_the_load_test_whatever_the_objectives(
    load_test: LoadTest, mistake: Mistake, profile: str, fault: str
) -> None:
    with serving(mistake) as server:
        ran = load_test.run_enough(server.url, f"--profile={profile}")
    assert ran.status == 1
    assert set(ran.report["verification"]["faults"]) == {fault}
    assert f"verification failed: {fault}" in ran.output


def bytes_of_the_connection(reply: Reply) -> Reply:
    """Give each mount bytes of its own, as a server without ETags may."""
    fields = {name: value for name, value in reply.fields.items() if name != "ETag"}
    status = 404 if reply.is_digest else reply.status
    other = bytes(byte ^ reply.connection % 256 for byte in reply.body)
    return attrs.evolve(reply, status=status, fields=fields, body=other)


@pytest.mark.soak
def test_mounts_without_etags_are_verified_one_by_one(load_test: LoadTest) -> None:
    with serving(bytes_of_the_connection) as server:
        ran = load_test.run_enough(server.url, "--profile=boot")
        assert len({reply.connection for reply in server.replies}) > 2
    assert (ran.status, ran.report["verification"]["faults"]) == (0, {})
    assert ran.report["verification"]["whole_images"][0]["outcome"] == "not-offered"


def resets(reply: Reply) -> Reply:
    return attrs.evolve(reply, cut="reset") if reply.number % 10 == 5 else reply


def closes(reply: Reply) -> Reply:
    return attrs.evolve(reply, cut="close") if reply.number % 10 == 5 else reply


def garbage(reply: Reply) -> Reply:
    return attrs.evolve(reply, garbage=b"220 mail\r\n\r\n") if reply.number % 10 == 5 else reply


def missing(reply: Reply) -> Reply:
    return attrs.evolve(reply, status=404) if reply.number % 10 == 5 else reply


def late(reply: Reply) -> Reply:
    return attrs.evolve(reply, waits_seconds=0.3)


def silent(reply: Reply) -> Reply:
    return attrs.evolve(reply, waits_seconds=100)


def busy(reply: Reply) -> Reply:
    return with_fields(attrs.evolve(reply, status=503), **{"Retry-After": "100"})


@pytest.mark.parametrize(
    ("mistake", "objective", "errors"),
    [
        (correct, "throughput>9999GB/s", set()),
        (correct, "requests>9999999/s", set()),
        (resets, "errors<0.1%", {"reset"}),
        (closes, "errors<0.1%", {"closed"}),
        (garbage, "errors<0.1%", {"malformed"}),
        (missing, "errors<0.1%", {"status-404"}),
        (late, "first-byte.p50<200ms", set()),
        (late, "p99.9<=200ms", set()),
    ],
)
def test_each_objective_fails_when_it_is_missed(
    load_test: LoadTest, mistake: Mistake, objective: str, errors: set[str]
) -> None:
    run = load_test.run_enough if errors else load_test.run
    with serving(mistake) as server:
        ran = run(server.url, f"--slo={objective}", "--slo=max<1m", "--check=0")
    assert ran.status == 1
    assert [told["met"] for told in ran.report["objectives"]] == [False, True]
    assert f"{objective}: missed, " in ran.output
    found = set(ran.report["counts"]["errors"])
    if mistake is resets:  # epoll may report that the connection has ended before it reports the reset
        found -= {"closed"}
    assert found == errors
    assert ran.report["verification"]["faults"] == {}


def test_detail_of_errors_is_shown_without_credentials(load_test: LoadTest) -> None:
    def refused(reply: Reply) -> Reply:
        body = b'{"detail": "no image /byid/top-secret"}'
        fields = {
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(body)),
            "Server": "x/1",
        }
        return attrs.evolve(reply, status=404, fields=fields, body=body)

    with serving(refused) as server:
        url = server.url.replace("/byid/x/", "/byid/top-secret/")
        mounted, downloaded = load_test.run(url), load_test.run(url, "--profile=download")
    for ran in (mounted, downloaded):
        assert ran.status == 1
        (check,) = ran.report["verification"]["whole_images"]
        assert (check["outcome"], check["detail"]) == ("status-404", "no image /…/…")
        assert "status-404: no image" in ran.output
        assert (ran.report["client_version"], ran.report["server_software"]) == (__version__, ["x/1"])
    assert downloaded.report["counts"]["details"] == {"status-404": "no image /…/…"}


@pytest.mark.parametrize(("timeout", "kind"), [("0.1s", "timeout"), ("60s", "unanswered")])
def test_load_test_ends_although_the_server_hangs(load_test: LoadTest, timeout: str, kind: str) -> None:
    with serving(silent) as server:
        ran = load_test.run(server.url, f"--timeout={timeout}", "--check=0", "--duration=1s")
    assert ran.status == 1
    assert ran.report["counts"]["errors"][kind] >= 4
    assert ran.report["missed"][0].startswith("no request succeeded: ")


def test_retry_after_is_obeyed_and_not_counted_as_error(load_test: LoadTest) -> None:
    with serving(busy) as server:
        ran = load_test.run(server.url, "--slo=refusals<10%", "--check=0", "--duration=2s")
        assert len(server.replies) == 4  # one of each client, which waits for the end then
    assert ran.status == 1
    assert ran.report["counts"]["refusals"] == 4
    assert ran.report["counts"]["errors"] == {}
    assert "refusals<10%: missed, 100 %" in ran.output


def says_that_it_leaves(reply: Reply) -> Reply:
    return with_fields(leaves(reply), Connection="close") if reply.number % 5 == 0 else reply


def leaves(reply: Reply) -> Reply:
    return attrs.evolve(reply, leaves=reply.number % 5 == 0)


@pytest.mark.parametrize(("mistake", "is_told"), [(says_that_it_leaves, True), (leaves, False)])
def test_connection_closed_between_requests_is_reopened(
    load_test: LoadTest, mistake: Mistake, is_told: object
) -> None:
    with serving(mistake) as server:
        ran = load_test.run_enough(server.url)
    assert (ran.status, ran.report["counts"]["errors"]) == (0, {})
    assert (ran.report["counts"]["reconnects"] == 0) is is_told


def test_fixed_rate_latency_includes_the_wait_behind_a_slow_response(load_test: LoadTest) -> None:
    ranges = count()

    def stalls_once(reply: Reply) -> Reply:
        return attrs.evolve(reply, waits_seconds=1.0 if next(ranges) == 5 else 0)

    with serving(stalls_once) as server:
        ran = load_test.run(server.url, "--rate=20/s", "--clients=1", "--duration=1.6s")
    # One answer in about thirty was slow; the twenty that were due meanwhile were late.
    assert ran.report["timings"]["range"]["p50_seconds"] > 0.1
    assert ran.report["counts"]["requests"] <= 34


def test_slow_readers_read_at_the_rate_asked_for(load_test: LoadTest) -> None:
    with serving() as server:
        ran = load_test.run(server.url, "--profile=download", "--rate=200kB/s", "--clients=1")
    assert ran.status == 0
    assert ran.report["timings"]["request"]["p50_seconds"] > 0.5


def test_unfinished_downloads_count_as_started(load_test: LoadTest) -> None:
    with serving() as server:
        options = ("--profile=download", "--rate=1kB/s", "--check=0", "--slo=first-byte.max<1m")
        ran = load_test.run(server.url, *options, "--duration=2s")
    assert (ran.status, ran.report["counts"]["errors"]) == (0, {})
    assert ran.report["timings"]["first-byte"]["count"] == 4
    assert ran.report["timings"]["first-request"]["count"] == 1
    assert ran.report["counts"]["requests"] == 0


def test_latency_of_a_retried_request_includes_the_first_attempt(load_test: LoadTest) -> None:
    requests = count()

    def dies_late(reply: Reply) -> Reply:
        if next(requests) == 5:
            server.ended.wait(0.3)
            raise ConnectionResetError
        return reply

    with serving(dies_late) as server:
        ran = load_test.run(server.url, "--clients=1")
    assert ran.report["counts"]["reconnects"] == 1
    assert ran.report["timings"]["first-byte"]["max_seconds"] >= 0.3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_load_test_with_a_report(load_test: LoadTest, number: signal.Signals) -> None:
    command = (*COMMAND, "--duration=1h", f"--report={load_test.directory}")
    pipe = subprocess.PIPE
    with (
        serving() as server,
        subprocess.Popen((*command, server.url), stdout=pipe, stderr=pipe, text=True) as process,
    ):
        while len(server.replies) < 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    ran = load_test.ran(process.returncode, output, errors)
    assert ran.status == 0
    assert ran.report["was_interrupted"]
    assert "It was ended early" in ran.output


@pytest.mark.soak
def test_terminal_shows_progress_each_second() -> None:
    ours, theirs = os.openpty()
    shown = b""
    try:
        with (
            serving() as server,
            subprocess.Popen(
                (*COMMAND, "--duration=100s", server.url), stderr=theirs, stdout=subprocess.DEVNULL
            ) as process,
        ):
            while len(set(re.findall(rb"\r\x1b\[K([0-9]+)/100 s  ", shown))) < 2:
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        shown += os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.endswith(b"\r\x1b[K")
