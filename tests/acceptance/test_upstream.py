"""assisted-service fails in every way: each request gets its first byte, or a refusal, within 3 s.

The 3 s are a promise to clients, so this test measures them. It subtracts the delay of a busy machine,
measured by continuous requests of `/live`, which depends on nothing but the CPU.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests.acceptance.latency_client import Client
from tests.acceptance.service import BEGUN, IN_FLIGHT, TWISTD, Service, os_image, run_service
from tests.acceptance.upstream import CONFIG, RESET, Reply, Script, Upstream, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.server.standalone.faults import Call
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.acceptance.latency_client import TimedResponse
    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

VERSION = "upstream"
UPSTREAM_SECONDS = 5
RANGE = {"Range": "bytes=30000-39999"}
SECRET = sha256(b"secret of an upstream").hexdigest()
CREDENTIALS = {"Authorization": f"Bearer {SECRET}"}
ENVIRONMENT = {
    "LOGLEVEL": "debug",
    "SNAPSHOT_TTL": "1",
    "UPSTREAM_CONCURRENCY": "64",
}
CLIENTS = 200
SUCCESSES = frozenset({200, 206})
MOST_THREADS = 32
"""What all its pools may have together, and the reactor's."""
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05

_BODY = CONFIG[:-1] + b', "storage": {"files": [{"path": "/' + SECRET.encode() + b'"}]}}'
_TOO_SLOW = f"took more than {UPSTREAM_SECONDS} s"
FAULTS: Mapping[str, tuple[Script, str]] = {
    "slow by 10 s": (Reply(_BODY, after_seconds=10), _TOO_SLOW),
    "hanging": (Reply(after_seconds=None), _TOO_SLOW),
    "stalling": (Reply(_BODY, promised=2 * len(_BODY), holds=True), _TOO_SLOW),
    "resetting": (Reply(resets=True, has_head=False), "the connection ended before the answer"),
    "answering 500": (Reply(_BODY, status=500), "assisted-service answered 500"),
    "garbage": (Reply(b"\0\xff" + _BODY + b"\r\n\r\n", has_head=False), "the answer is not HTTP"),
    "half a body": (Reply(_BODY, promised=2 * len(_BODY)), f"ended early, after {len(_BODY)} bytes"),
    "100 MiB": (lambda _: Reply(_BODY.ljust(100 * 1024 * 1024)), "is larger than"),
}
"""What it does when it is asked for a config, and what the log says of that."""


@attrs.frozen
class Site:
    """The service, its upstream and a client."""

    service: Service
    upstream: Upstream
    client: Client

    def register(self, ignition: Script | None = None) -> str:
        """Register one more infra-env."""
        return self.upstream.register(ignition, VERSION)

    def request(self, path: str, method: str = "GET", fields: dict[str, str] = RANGE) -> TimedResponse:
        """Send one request, by default for a range; check that its first byte comes in time."""
        response = self.client.request(path, method, CREDENTIALS | fields)
        response.check_time()
        return response

    def request_all(self, infra_envs: Iterable[str]) -> list[list[TimedResponse]]:
        """Send every kind of request for the infra-envs at once, and repeat refused ones."""
        asked = [request for infra_env_id in infra_envs for request in requests(infra_env_id)]
        with ThreadPoolExecutor(len(asked)) as pool:
            return list(pool.map(lambda request: self.client.request_until_served(*request), asked))


@contextmanager
def serving(directory: Path, certificate: Certificate, workers: int = 1, **variables: str) -> Iterator[Site]:
    iso = directory / "base.iso"
    iso.write_bytes(build_live_iso())
    with running(certificate) as upstream:
        environment = {
            **ENVIRONMENT,
            **upstream.environment,
            "UPSTREAM_TIMEOUT": str(UPSTREAM_SECONDS),
            "WORKERS": str(workers),
            **variables,
        }
        images = [os_image(iso, VERSION)]
        with (
            run_service(directory, images, command=TWISTD, environment=environment) as service,
            Client(urlsplit(service.url).netloc).measuring() as client,
        ):
            yield Site(service, upstream, client)


@pytest.fixture(scope="module")
def site(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("upstream"), certificate) as served:
        yield served


@pytest.fixture(scope="module")
def site_of_two(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run the service with two workers."""
    with serving(tmp_path_factory.mktemp("upstream"), certificate, workers=2) as served:
        yield served
        output = served.service.stdout.decode()
        assert set(re.findall(r' ranges? of .*"worker": (\d)', output)) == {"0", "1"}


@pytest.fixture(params=[soaked("site"), "site_of_two"])
def each_site(request: pytest.FixtureRequest) -> Site:
    """Run the service with one worker and with two."""
    site: Site = request.getfixturevalue(request.param)
    return site


def iso_of(infra_env_id: str) -> str:
    return f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"


def requests(infra_env_id: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return every kind of request for an infra-env: path, method and fields."""
    iso = iso_of(infra_env_id)
    return [
        (iso, "GET", CREDENTIALS),
        (iso, "HEAD", CREDENTIALS),
        (iso, "GET", CREDENTIALS | RANGE),
        (f"{iso}.sha256", "GET", CREDENTIALS),
        (f"/images/{infra_env_id}/pxe-initrd?version={VERSION}", "GET", CREDENTIALS),
        (f"/clusters/{infra_env_id}/downloads/image", "GET", CREDENTIALS),
    ]


def descriptors(process: Path) -> Iterator[str]:
    """Yield the targets of the open descriptors of a process."""
    for path in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield str(path.readlink())


def held(service: Service) -> dict[str, float]:
    """Return the resources that failures must not leak."""
    process = Path(f"/proc/{service.process.pid}")
    gauges = ("http_requests_inflight", "slots_", "connections", "snapshot_grace_active")
    return {
        # Without those of the database: it opens a connection for each thread that happens to use it.
        "descriptors": sum(".sqlite" not in name for name in descriptors(process)),
        **{name: value for name, value in service.metrics().items() if name.startswith(gauges)},
    }


@attrs.frozen
class Storm:
    """The result of every kind of request during every fault, all at once.

    Args:
        infra_envs: by fault.
        responses: by fault, one for each request.
    """

    infra_envs: Mapping[str, str]
    responses: Mapping[str, list[TimedResponse]]


@pytest.fixture(scope="module")
def storm(site: Site) -> Storm:
    warm = [site.register() for _ in FAULTS]
    assert all(responses[-1].status in SUCCESSES for responses in site.request_all(warm))
    before = held(site.service)
    infra_envs = {name: site.register(reply) for name, (reply, _) in FAULTS.items()}
    asked = [
        (name, request) for name, infra_env_id in infra_envs.items() for request in requests(infra_env_id)
    ]
    responses: dict[str, list[TimedResponse]] = {name: [] for name in FAULTS}
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = pool.map(lambda asked: site.client.request(*asked[1]), asked)
        for (name, _), answer in zip(asked, answers, strict=True):
            responses[name].append(answer)
    wait_until_no_more(site.service, before)
    return Storm(infra_envs, responses)


@pytest.mark.parametrize("fault", FAULTS)
def test_upstream_failure_is_refused_within_3_seconds(storm: Storm, fault: str) -> None:
    assert len(storm.responses[fault]) == len(requests(""))
    for response in storm.responses[fault]:
        response.check_time()
        response.check_refusal()


def test_retry_after_slow_upstream_gets_the_image(each_site: Site) -> None:
    site = each_site
    infra_env_id = site.register(Reply(_BODY, after_seconds=4))
    for responses in site.request_all([infra_env_id]):
        assert responses[-1].status in SUCCESSES
        for response in responses:
            response.check_time()
    # One round for the ISO and one for PXE; a client that repeats late asks for an older answer once more.
    assert 2 <= site.upstream.count(infra_env_id) < len(requests(infra_env_id))


@pytest.mark.parametrize("fault", FAULTS)
def test_log_names_upstream_failures_and_each_failed_request_once(
    site: Site, storm: Storm, fault: str
) -> None:
    _, cause = FAULTS[fault]
    infra_env_id = storm.infra_envs[fault]
    lines = [json.loads(line) for line in site.service.stdout.splitlines() if infra_env_id.encode() in line]
    requests = [line for line in lines if line["logger"] == "access"]
    assert sorted(line["id"] for line in requests) == sorted(
        response.headers["X-Request-ID"] for response in storm.responses[fault]
    )
    assert {line["level"] for line in requests} <= {"warn", "error"}
    assert all(infra_env_id in line["path"] and line["detail"] for line in requests)
    upstream = [line["message"] for line in lines if "assisted" in line["logger"]]
    assert len(upstream) <= site.upstream.count(infra_env_id)
    # A cause that a request names is logged. On a busy machine others are too slow; many of those are not.
    assert upstream or not any(cause in line["detail"] for line in requests)
    assert all(cause in message or _TOO_SLOW in message for message in upstream)


def wait_until_no_more(service: Service, before: Mapping[str, float]) -> None:
    """Wait until no more resources are held than before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while more := {name: value for name, value in held(service).items() if value > before.get(name, 0)}:
        assert time.monotonic() < deadline, (more, before)
        time.sleep(POLL_SECONDS)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


@pytest.mark.parametrize("workers", [soaked(1), 2])
def test_concurrent_first_requests_make_one_upstream_round(
    certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    patient = str(PATIENCE_SECONDS)
    with serving(tmp_path, certificate, workers, UPSTREAM_TIMEOUT=patient, SNAPSHOT_TTL=patient) as site:
        check_concurrent_first_requests(site)


def check_concurrent_first_requests(site: Site) -> None:
    go_on = threading.Event()
    infra_env_id = site.register(lambda _: Reply(CONFIG if go_on.wait(PATIENCE_SECONDS) else b""))
    before, begun_before = site.service.total(IN_FLIGHT), site.service.total(BEGUN)
    with ExitStack() as stack:
        stack.callback(go_on.set)
        clients = [stack.enter_context(asking(site, infra_env_id, number)) for number in range(CLIENTS)]
        wait_for(lambda: site.service.total(BEGUN) >= begun_before + CLIENTS)
        for leaving in clients[::2]:
            leaving.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            leaving.close()
        wait_for(lambda: site.service.total(IN_FLIGHT) <= before + CLIENTS / 2)
        go_on.set()
        answers = [client.getresponse() for client in clients[1::2]]
        contents = {answer.read() for answer in answers if answer.status == 206}
        assert {answer.status for answer in answers} <= {206, 504}  # on a busy machine, all came too late
    assert [site.upstream.count(infra_env_id, call) for call in Call] == [1, 1, 0]
    assert contents <= {site.service.get_image(iso_of(infra_env_id), RANGE).body}


@contextmanager
def asking(site: Site, infra_env_id: str, number: int) -> Iterator[HTTPConnection]:
    """Send a request from an address of its own, without reading the response."""
    authority = urlsplit(site.service.url).netloc
    source = (f"127.0.1.{number + 1}", 0)
    with closing(HTTPConnection(authority, timeout=PATIENCE_SECONDS, source_address=source)) as client:
        client.request("GET", iso_of(infra_env_id), headers=RANGE)
        yield client


def test_known_image_is_served_during_upstream_failure_until_refusal(
    each_site: Site,
) -> None:
    site = each_site
    infra_envs = {status: site.register() for status in (401, 403, 404)}
    known = {status: site.request(iso_of(infra_env_id)) for status, infra_env_id in infra_envs.items()}
    graces = site.service.total("snapshot_grace_requests_total")
    for infra_env_id in infra_envs.values():
        site.upstream.tell(infra_env_id, Reply(after_seconds=None))

    def are_in_grace() -> bool:
        """Return True if enough requests were served so; processes may count one snapshot each as active."""
        is_active = site.service.total("snapshot_grace_active") >= len(infra_envs)
        return is_active and site.service.total("snapshot_grace_requests_total") >= graces + len(infra_envs)

    while not are_in_grace():
        time.sleep(POLL_SECONDS)
        for status, infra_env_id in infra_envs.items():
            assert site.request(iso_of(infra_env_id)).body == known[status].body
    for status, infra_env_id in infra_envs.items():
        assert site.request(iso_of(infra_env_id)).body == known[status].body
        site.upstream.tell(infra_env_id, Reply(_BODY, status))
    for status, infra_env_id in infra_envs.items():
        check_the_end(site, infra_env_id, status, known[status])
    assert site.service.total("snapshot_grace_active") == 0


def check_the_end(site: Site, infra_env_id: str, status: int, known: TimedResponse) -> None:
    """Check that after the first refusal no client gets any byte."""
    response = site.request(iso_of(infra_env_id))
    while response.status in SUCCESSES:
        assert response.body == known.body
        time.sleep(POLL_SECONDS)
        response = site.request(iso_of(infra_env_id))
    assert response.status == status
    named = RANGE | {"If-Range": known.headers["ETag"]}
    assert {site.request(iso_of(infra_env_id), "GET", fields).status for fields in (RANGE, {}, named)} == {
        status
    }


def test_log_of_upstream_failures_has_no_secret_and_no_traceback(site: Site, storm: Storm) -> None:
    assert storm.responses
    assert len(list(Path(f"/proc/{site.service.process.pid}/task").iterdir())) <= MOST_THREADS
    assert SECRET.encode() not in site.service.output
    assert b"Traceback" not in site.service.output
