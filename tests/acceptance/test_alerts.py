"""Each alert of ``conf/prometheus-rules.yaml``, from the series of a service with its fault."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import trustme

from image_service.server.standalone.sample import unpack_sample
from tests.acceptance.readers import reading
from tests.acceptance.recorded import Minute, check_alerts, minute, read_page
from tests.acceptance.service import (
    ONE_ATTEMPT,
    SERVE,
    Certificate,
    Service,
    fetch,
    os_image,
    run_service,
)
from tests.acceptance.tenants import wait_for
from tests.acceptance.test_locked_store import locked
from tests.acceptance.upstream import CONFIG, Reply, Upstream, running
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files, write_sparse_iso
from tests.pgbouncer import running_pgbouncer
from tests.ports import free_port
from tests.remote_base import dense_base
from tests.replicas.tcp_proxy import running_proxy
from tests.server.catalog.origin import Reply as OriginReply
from tests.server.catalog.origin import Resource
from tests.server.catalog.origin import running as origin_running
from tests.server.catalog.test_killed import private_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

VERSION = "alerts"
RANGE = {"Range": "bytes=0-65535"}
REQUESTS = 30
"""Of a fault; less than 20 failures are no alert."""
STOPPED_SECONDS = 3.2
FAILED = {502, 504}
MIB = 1024 * 1024
SAME_HOST_SECONDS = 1.0


def warning(name: str) -> tuple[str, str]:
    return (f"ImageService{name}", "warning")


def critical(name: str) -> tuple[str, str]:
    return (f"ImageService{name}", "critical")


ERRORS = {critical("Errors"), warning("Errors")}


@pytest.fixture
def upstream(certificate: Certificate) -> Iterator[Upstream]:
    with running(certificate) as served:
        yield served


@contextmanager
def serving(  # noqa: PLR0913 - all but two have defaults
    directory: Path,
    upstream: Upstream,
    environment: Mapping[str, str] | None = None,
    *,
    certificate: Certificate | None = None,
    command: Sequence[str] = SERVE,
    more_images: Sequence[Mapping[str, object]] = (),
) -> Iterator[Service]:
    """Run a service with one base image that is ready."""
    iso = directory / "base.iso"
    if not iso.exists():
        unpack_sample(directory).rename(iso)  # nothing has to be derived from it
    variables = {**upstream.environment, **(environment or {})}
    images: list[Mapping[str, object]] = [os_image(iso, VERSION), *more_images]
    with run_service(
        directory, images, command=command, certificate=certificate, environment=variables
    ) as service:
        yield service


def path_of(infra_env_id: str) -> str:
    return f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"


def ask(service: Service, infra_env_ids: Sequence[str]) -> list[int]:
    """Request a range of the images of infra-envs; return the statuses."""
    with ThreadPoolExecutor(8) as pool:
        return [each.status for each in pool.map(lambda one: service.get(path_of(one), RANGE), infra_env_ids)]


def mount(service: Service, *infra_env_ids: str) -> None:
    """Request images until they are served: on a busy machine, the first requests may take too long."""
    wait_for(lambda: set(ask(service, infra_env_ids)) == {206})


def unknown(count: int = REQUESTS) -> list[str]:
    return [str(uuid4()) for _ in range(count)]


def state(name: str) -> str:
    return rf'base_images\{{state="{name}"\}}'


@pytest.fixture(scope="module")
def healthy(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Minute:
    """Return a minute of 40 requests that succeed."""
    with (
        running(certificate) as upstream,
        serving(tmp_path_factory.mktemp("healthy"), upstream, {"WORKERS": "2"}) as service,
    ):
        known = [upstream.register(version=VERSION) for _ in range(4)]
        mount(service, *known * 4)  # in both workers
        before = read_page(service)
        assert set(ask(service, known * 10)) == {206}
        wait_for(lambda: service.total("snapshot_store_failing.*") == 0)  # it fails on a busy machine
        return minute(before, read_page(service))


@pytest.fixture(scope="module")
def failing(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Minute:
    """Return a minute in which assisted-service fails: 30 requests get 502, and known images are served."""
    directory = tmp_path_factory.mktemp("failing")
    with running(certificate) as upstream, serving(directory, upstream, {"SNAPSHOT_TTL": "1"}) as service:
        known = upstream.register(version=VERSION)
        mount(service, known)
        before = read_page(service)
        upstream.unknown = Reply(status=500)
        upstream.tell(known, Reply(status=500))
        assert set(ask(service, unknown())) <= FAILED
        wait_for(lambda: ask(service, [known]) == [206] and service.total("snapshot_grace_active") == 1)
        return minute(before, read_page(service))


# Without a fault.


def test_healthy_service_raises_no_alert(tmp_path: Path, healthy: Minute) -> None:
    check_alerts(tmp_path, [(120, healthy)], firing=())


def test_service_without_traffic_raises_no_alert(tmp_path: Path, healthy: Minute) -> None:
    check_alerts(tmp_path, [(1, healthy), (90, healthy.idle)], firing=())


def test_host_that_boots_from_another_infra_env_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    first, second = (path_of(upstream.register(version=VERSION)) for _ in range(2))
    fields = {**RANGE, "User-Agent": "iPXE/1.21.1"}
    with serving(tmp_path, upstream, {"MOUNT_STALL_SECONDS": "600", "WORKERS": "2"}) as service:
        wait_for(lambda: service.get(first, fields).status == 206 and service.total(r"mounts\{.*\}") == 1)
        before = read_page(service)
        assert service.total("mounts_moved") == 0
        wait_for(lambda: service.get(second, fields).status == 206 and service.total("mounts_moved") == 1)
        moved = minute(before, read_page(service))
    check_alerts(tmp_path, [(3, moved)], firing={warning("HostMoved")})


# Burn rates.


def test_failing_upstream_raises_alerts(tmp_path: Path, healthy: Minute, failing: Minute) -> None:
    expected = {*ERRORS, warning("UpstreamFailing"), warning("InGrace")}
    check_alerts(tmp_path, [(30, healthy), (10, failing)], firing=expected)


@pytest.mark.soak
def test_refusing_upstream_raises_an_alert(tmp_path: Path, upstream: Upstream, healthy: Minute) -> None:
    upstream.unknown = Reply(status=401)
    with serving(tmp_path, upstream) as service:
        before = read_page(service)
        assert set(ask(service, unknown())) == {401}
        fault = minute(before, read_page(service))
    check_alerts(tmp_path, [(30, healthy), (20, fault)], firing={warning("UpstreamRefuses")})


def test_errors_of_all_requests_raise_an_alert_within_minutes(
    tmp_path: Path, healthy: Minute, failing: Minute
) -> None:
    check_alerts(tmp_path, [(60, healthy), (3, failing)], firing=ERRORS, among="ImageServiceErrors")


def test_alert_about_errors_ends_soon_after_them(tmp_path: Path, healthy: Minute, failing: Minute) -> None:
    phases = [(60, healthy), (10, failing), (40, healthy * 100)]
    check_alerts(tmp_path, phases, firing={warning("Errors")}, among="ImageServiceErrors")


@pytest.mark.parametrize(
    ("error_percent", "hours", "expected"),
    [
        (4, 2, ERRORS),
        (1, 7, ERRORS),
        (1, 1, {warning("Errors")}),
        (0.3, 72, {warning("Errors")}),
        (0.07, 72, set()),
    ],
)
def test_severity_depends_on_the_burn_rate(  # noqa: PLR0913 - cases and fixtures
    tmp_path: Path,
    healthy: Minute,
    failing: Minute,
    *,
    error_percent: float,
    hours: int,
    expected: set[tuple[str, str]],
) -> None:
    """After six hours without errors."""
    successes = round(failing.requests("5..") * 100 / error_percent / healthy.requests())
    step = 15 if hours > 24 else 1
    phases = [(6 * 60, healthy * successes), (hours * 60, failing + healthy * successes)]
    check_alerts(tmp_path, phases, firing=expected, among="ImageServiceErrors", step_minutes=step)


@pytest.mark.soak
def test_one_failed_request_of_ten_an_hour_raises_no_alert(tmp_path: Path, upstream: Upstream) -> None:
    known = upstream.register(version=VERSION)
    with serving(tmp_path, upstream) as service:
        mount(service, known)
        upstream.unknown = Reply(status=500)
        before = read_page(service)
        assert set(ask(service, [known] * 9)) == {206}
        assert set(ask(service, unknown(1))) <= FAILED
        some = minute(before, read_page(service))
    night = [phase for _ in range(8) for phase in ((1, some), (59, some.idle))]
    check_alerts(tmp_path, night, firing=(), among="ImageService(Errors|Slow|Aborts|Refuses)")


def test_base_image_that_shrinks_raises_alerts(tmp_path: Path, upstream: Upstream, healthy: Minute) -> None:
    iso = tmp_path / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=bytes(4 * MIB)), {})
    with serving(tmp_path, upstream) as service:
        path = path_of(upstream.register(version=VERSION))
        size = len(service.get_image(path).body)
        before = read_page(service)
        os.truncate(iso, size // 2)
        for _ in range(REQUESTS):
            with pytest.raises((IncompleteRead, ConnectionError)):
                service.get(path)
        fault = minute(before, read_page(service))
    expected = {critical("Aborts"), warning("Aborts"), critical("DiskFails")}
    check_alerts(
        tmp_path, [(60, healthy), (5, fault)], firing=expected, among="ImageService(Aborts|DiskFails)"
    )


@pytest.mark.soak
def test_full_queue_for_slots_raises_alerts(tmp_path: Path, upstream: Upstream, healthy: Minute) -> None:
    iso = tmp_path / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=bytes(16 * MIB)), {})
    environment = {"MAX_CONCURRENT_REQUESTS": "1", "MIN_DOWNLOAD_RATE": "0"}
    with serving(tmp_path, upstream, environment) as service:
        known = upstream.register(version=VERSION)
        mount(service, known)
        path = path_of(known)
        with reading(service.url + path) as holder, ThreadPoolExecutor(REQUESTS) as pool:
            holder.read_head()
            before = read_page(service)
            assert {answer.status for answer in pool.map(service.get, [path] * REQUESTS)} == {503}
            fault = minute(before, read_page(service))
    expected = {*ERRORS, critical("Refuses"), warning("Refuses"), warning("SlotsTaken")}
    check_alerts(
        tmp_path,
        [(60, healthy), (15, fault)],
        firing=expected,
        among="ImageService(Errors|Refuses|SlotsTaken|Aborts)",
    )


@pytest.mark.soak
def test_slow_upstream_raises_a_warning(tmp_path: Path, upstream: Upstream) -> None:
    about = r"http_time_to_first_byte_seconds_(count|bucket)"
    with serving(tmp_path, upstream) as service:
        new = [upstream.register(Reply(CONFIG, after_seconds=0.2), VERSION) for _ in range(REQUESTS)]
        before = read_page(service, about=about)
        assert set(ask(service, new)) <= {206, 504}
        fault = minute(before, read_page(service, about=about))
    check_alerts(tmp_path, [(30, fault)], firing={warning("Slow")}, among="ImageServiceSlow")


@pytest.mark.soak
def test_stopped_process_raises_an_alert_about_late_responses(tmp_path: Path, upstream: Upstream) -> None:
    """The process is stopped for more than the 3 s of the objective, while a request waits."""
    about = r"http_time_to_first_byte_seconds_(count|bucket)"
    known = upstream.register(Reply(CONFIG, after_seconds=10), VERSION)
    with serving(tmp_path, upstream) as service:
        before = read_page(service, about=about)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(service.get, path_of(known), RANGE)
            wait_for(lambda: upstream.count(known) == 1)
            os.kill(service.process.pid, signal.SIGSTOP)
            try:
                time.sleep(STOPPED_SECONDS)
            finally:
                os.kill(service.process.pid, signal.SIGCONT)
            asked.result()
        fault = minute(before, read_page(service, about=about))
    check_alerts(tmp_path, [(5, fault.idle), (1, fault), (1, fault.idle)], firing={warning("Late")})


# Base images.


def test_unreachable_origin_raises_alerts(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/base.iso"
    image = {**os_image(tmp_path, VERSION), "url": url}
    with run_service(tmp_path, [image], probe="/live", environment=ONE_ATTEMPT) as service:
        wait_for(lambda: service.total(state("failed")) == 1)
        page = read_page(service)
    expected = {critical("NotReady"), warning("BaseImageFailed")}
    check_alerts(tmp_path, [(20, minute(page, page))], firing=expected)


@pytest.mark.soak
def test_wrong_digest_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    other = tmp_path / "other.iso"
    other.write_bytes(build_live_iso())
    wrong = {**os_image(other, "wrong"), "sha256": "0" * 64}
    with serving(tmp_path, upstream, more_images=[wrong]) as service:
        wait_for(lambda: service.total(state("refused")) == 1)
        page = read_page(service)
    check_alerts(tmp_path, [(20, minute(page, page))], firing={warning("BaseImageRefused")})


@pytest.mark.soak
def test_missing_xorriso_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    (tmp_path / "base.iso").write_bytes(build_live_iso())  # has no recipe of its minimal ISO
    (tmp_path / "programs").mkdir()
    with serving(tmp_path, upstream, {"PATH": str(tmp_path / "programs")}) as service:
        wait_for(lambda: service.total(state("degraded")) == 1)
        page = read_page(service)
    check_alerts(tmp_path, [(20, minute(page, page))], firing={warning("BaseImageDegraded")})


@pytest.mark.soak
def test_stream_without_origin_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    stream = {
        "stream": "stable",
        "url": f"http://127.0.0.1:{free_port()}/stable.json",
        "architectures": ["x86_64"],
    }
    with serving(tmp_path, upstream, {"COREOS_STREAMS": json.dumps([stream])}) as service:
        wait_for(lambda: service.total(r'stream_refresh_failures\{stream="stable"\}') > 0)
        page = read_page(service)
    check_alerts(tmp_path, [(59, minute(page, page))], firing=())
    check_alerts(tmp_path, [(70, minute(page, page))], firing={warning("StreamFails")})


# Disk and snapshot store.


def test_full_file_system_raises_alerts(tmp_path: Path, upstream: Upstream) -> None:
    (tmp_path / "data").mkdir()
    fill = 'mount -t tmpfs -o size=100m none data && head -c 98m /dev/zero > data/other && exec "$@"'
    command = (*private_mounts(), "sh", "-c", fill, "sh", *SERVE)
    about = "data_dir_.*"
    with serving(tmp_path, upstream, command=command) as service:
        wait_for(lambda: service.total("data_dir_free_bytes") > 0)
        page = read_page(service, about=about)
    expected = {warning("DiskLow"), critical("DiskFull")}
    check_alerts(tmp_path, [(20, minute(page, page))], firing=expected, among="ImageServiceDisk.*")


@pytest.mark.soak
def test_nearly_reached_limit_of_the_data_directory_raises_an_alert(
    tmp_path: Path, upstream: Upstream
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "other").write_bytes(bytes(MIB))
    with serving(tmp_path, upstream, {"DATA_DIR_MAX_BYTES": str(MIB * 101 // 100)}) as service:
        wait_for(lambda: service.total("data_dir_used_bytes") > 0)
        page = read_page(service)
    check_alerts(tmp_path, [(20, minute(page, page))], firing={warning("DataDirLimit")})


@pytest.mark.soak
def test_locked_store_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    with serving(tmp_path, upstream) as service:
        mount(service, upstream.register(version=VERSION))
        with locked(tmp_path / "data" / "snapshots.sqlite"):
            mount(service, upstream.register(version=VERSION))
            page = read_page(service)
    check_alerts(tmp_path, [(10, minute(page, page))], firing={warning("StoreFails")})


@pytest.mark.soak
def test_full_store_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    environment = {"SNAPSHOT_STORE_BYTES": str(8 * MIB)}
    with serving(tmp_path, upstream, environment) as service:
        mount(service, upstream.register(version=VERSION))
    with closing(sqlite3.connect(tmp_path / "data" / "snapshots.sqlite")) as database, database:
        database.execute("CREATE TABLE other AS SELECT zeroblob(?)", (8 * MIB,))
    with serving(tmp_path, upstream, environment) as service:  # which measures the disk at its start
        wait_for(lambda: service.total("snapshot_store_bytes") > 0)
        page = read_page(service)
    check_alerts(tmp_path, [(70, minute(page, page))], firing={warning("StoreFull")})


# Replicas.


def test_database_that_is_away_raises_alerts(
    tmp_path: Path, upstream: Upstream, postgres: PostgresServer
) -> None:
    secret, url = tmp_path / "secret", postgres.create_database()
    secret.write_text("5" * 64)
    with running_proxy("127.0.0.1", ("127.0.0.1", postgres.port)) as proxy:
        environment = {
            "INSTANCE_SECRET_FILE": str(secret),
            "DATABASE_URL": url.replace(f":{postgres.port}/", f":{proxy.port}/"),
        }
        with serving(tmp_path, upstream, environment) as service:
            mount(service, upstream.register(version=VERSION))
            wait_for(lambda: service.total("database_unreachable") == 0)
            assert service.total("database_round_trip_seconds") > 0
            wait_for(lambda: abs(service.total("database_clock_offset_seconds")) < SAME_HOST_SECONDS)
            proxy.cut()
            wait_for(lambda: service.total("database_unreachable") == 1)
            page = read_page(service)
    check_alerts(tmp_path, [(3, minute(page, page))], firing={critical("DatabaseUnreachable")})


@pytest.mark.parametrize("is_named", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_pooler_that_passes_no_notifications_on_raises_an_alert(
    tmp_path: Path, upstream: Upstream, postgres: PostgresServer, *, is_named: bool
) -> None:
    secret, url = tmp_path / "secret", postgres.create_database()
    secret.write_text("5" * 64)
    environment = {"INSTANCE_SECRET_FILE": str(secret), **({"DATABASE_LISTEN_URL": url} if is_named else {})}
    with running_pgbouncer(postgres) as port:
        environment["DATABASE_URL"] = url.replace(f":{postgres.port}/", f":{port}/")
        with serving(tmp_path, upstream, environment) as service:
            mount(service, upstream.register(version=VERSION))
            if is_named:
                wait_for(lambda: service.total("claims_polling") == 0)
            else:
                wait_for(lambda: b"notifications do not arrive" in service.stdout)
            page = read_page(service)
    firing = set() if is_named else {warning("ReplicasPoll")}
    # A busy machine may be late with a write too, which raises another alert.
    check_alerts(tmp_path, [(15, minute(page, page))], firing=firing, among="ImageServiceReplicas.*")


# Remote base images.


@pytest.mark.soak
def test_origin_that_fails_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    body = dense_base(24)
    with origin_running() as origin:
        origin.serve("/base.iso", Resource(body))
        remote = {**os_image(tmp_path, "remote"), "url": origin.url("/base.iso"), "remote": True}
        with serving(tmp_path, upstream, more_images=[remote]) as service:
            known = upstream.register(version="remote")
            path = f"/byid/{known}/remote/x86_64/full.iso"
            wait_for(lambda: service.get(path, RANGE).status == 206)
            healthy = read_page(service)
            origin.replies["/base.iso"] = [OriginReply(status=500)]
            middle = {"Range": f"bytes={len(body) // 2}-{len(body) // 2 + 99}"}
            for _ in range(REQUESTS):
                assert service.get(path, middle).status == 503
            fault = minute(healthy, read_page(service))
            lines = service.stdout.decode().splitlines()
    assert sum("status 500" in line for line in lines) >= REQUESTS
    expected = {warning("RemoteOriginFailing")}
    check_alerts(tmp_path, [(10, fault)], firing=expected, among="ImageServiceRemote.*")
    check_alerts(tmp_path, [(10, fault.idle)], firing=(), among="ImageServiceRemote.*")


# TLS.


@pytest.mark.soak
def test_clients_that_do_not_trust_the_certificate_raise_an_alert(
    tmp_path: Path, upstream: Upstream, certificate: Certificate, healthy: Minute
) -> None:
    with serving(tmp_path, upstream, certificate=certificate) as service:
        before = read_page(service)
        for _ in range(REQUESTS):
            with pytest.raises(ssl.SSLCertVerificationError):
                fetch(f"{service.url}/live")  # with the authorities of the system
        counted = r'tls_handshake_failures_total\{reason="not-trusted"\}'
        wait_for(lambda: service.total(counted) == REQUESTS)
        fault = minute(before, read_page(service))
    expected = {warning("TlsHandshakes")}
    check_alerts(tmp_path, [(40, fault)], firing=expected, among="ImageServiceTls.*")
    rare = [(1, fault), (89, fault.idle)]
    check_alerts(tmp_path, rare, firing=(), among="ImageServiceTls.*")
    check_alerts(tmp_path, [(90, fault + healthy * 100)], firing=(), among="ImageServiceTls.*")


@pytest.mark.soak
def test_certificate_that_ends_raises_alerts(tmp_path: Path, upstream: Upstream) -> None:
    not_after = datetime.now(UTC) + timedelta(days=20)
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", not_after=not_after)
    issued = Certificate(tmp_path / "key.pem", tmp_path / "chain.pem", tmp_path / "ca.pem")
    leaf.private_key_pem.write_to_path(str(issued.key))
    leaf.cert_chain_pems[0].write_to_path(str(issued.chain))
    authority.cert_pem.write_to_path(str(issued.ca))
    with serving(tmp_path, upstream, certificate=issued) as service:
        page = read_page(service)
    soon, now = warning("CertificateExpires"), critical("CertificateExpires")
    for days, expected in ((5, set()), (7, {soon}), (18, {soon, now}), (21, {soon, now})):
        phases = [(days * 24 * 60, minute(page, page))]
        check_alerts(tmp_path, phases, firing=expected, step_minutes=60)


# Processes.


@pytest.mark.soak
def test_killed_worker_raises_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    with serving(tmp_path, upstream, {"WORKERS": "2"}) as service:
        before = read_page(service)
        children = f"/proc/{service.process.pid}/task/{service.process.pid}/children"
        os.kill(int(Path(children).read_text().split()[-1]), signal.SIGKILL)
        wait_for(lambda: service.total("worker_restarts_total") == 1)
        fault = minute(before, read_page(service))
    phases = [(5, fault.idle), (1, fault), (5, fault.idle)]
    check_alerts(tmp_path, phases, firing={warning("WorkerRestarts")})


@pytest.mark.soak
def test_replicas_of_different_releases_raise_an_alert(
    tmp_path: Path, upstream: Upstream, healthy: Minute
) -> None:
    later = (sys.executable, "-m", "tests.replicas.later_release", "serve")
    with serving(tmp_path, upstream, command=later) as service:
        page = read_page(service)
    replicas = [(50, healthy)], [(50, minute(page, page))]
    check_alerts(tmp_path, *replicas, firing=())
    replicas = [(70, healthy)], [(70, minute(page, page))]
    check_alerts(tmp_path, *replicas, firing={warning("ReplicasDiffer")})


@pytest.mark.soak
def test_used_descriptors_raise_an_alert(tmp_path: Path, upstream: Upstream) -> None:
    with serving(tmp_path, upstream) as service, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(reading(service.url + "/live")).read_head()
        limit = service.descriptors + 5
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        page = read_page(service)
    check_alerts(tmp_path, [(10, minute(page, page))], firing={warning("Descriptors")})


def test_ended_service_raises_an_alert(tmp_path: Path, healthy: Minute) -> None:
    check_alerts(tmp_path, [(10, healthy), (15, None)], firing={critical("Absent")})
