"""Ranges of one origin: each answer that does not fit the pinned version is refused, none is believed."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.block_cache.source import OriginChanged, OriginFailed
from image_service.common.http import client as http_client
from image_service.common.http import connection
from image_service.common.objects.s3_client import S3Options
from image_service.core.errors import BaseImageError
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.remote.origin import STALL_SECONDS, Origin, build_range_client
from image_service.server.catalog.remote.s3 import S3Signer
from image_service.server.catalog.remote.source import ATTEMPTS, PinnedSource
from image_service.server.catalog.storage.base_records import Pin
from image_service.settings.base_images import DownloadSettings
from image_service.settings.proxies import ProxySettings
from tests.origin_faults import EXPIRED_PATH, FAULTS, Fault, FaultyResource, answer_whole, drip
from tests.remote_base import noise
from tests.server.catalog.origin import Origin as Server
from tests.server.catalog.origin import Reply, Resource, running

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from image_service.common.http.client import HttpClient

BODY = noise(300_000)
SECRET = "top-secret"
LENGTH = 100_000
CHANGES = {"other size", "other ETag", "weak ETag"}


_clients: list[HttpClient] = []


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    """Close what `origin_at` keeps open."""
    yield
    while _clients:
        _clients.pop().close()


def origin_at(
    url: str,
    *configured: str,
    environ: dict[str, str] | None = None,
    s3: S3Options | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Origin:
    """Return the origin of a URL; those of `configured` get credentials."""
    settings = DownloadSettings(headers={"X-Key": SECRET}, query_params={"token": SECRET})
    proxies = ProxySettings.from_environment(environ or {})
    downloads = OriginClient.from_settings(settings, configured, proxies)
    client = build_range_client(downloads, Interruption(), stall_seconds)
    _clients.append(client)
    return Origin(url, client, downloads, S3Signer(s3 or S3Options()))


def fetch(origin: Origin, pin: Pin, offset: int, length: int) -> bytes:
    target = bytearray(length)
    origin.fetch(pin, offset, memoryview(target))
    return bytes(target)


@pytest.fixture
def other() -> Iterator[Server]:
    with running() as server:
        yield server


def test_version_is_pinned_and_ranges_are_conditional(origin: Server) -> None:
    remote = origin_at(origin.serve("/base.iso", Resource(BODY)))
    pin = remote.find_version()
    assert pin == Pin('"1"', len(BODY))
    assert fetch(remote, pin, 1000, LENGTH) == BODY[1000 : 1000 + LENGTH]
    assert fetch(remote, pin, len(BODY) - 1, 1) == BODY[-1:]
    assert origin.requests[1].headers["If-Match"] == '"1"'
    assert {request.headers["Accept-Encoding"] for request in origin.requests} == {"identity"}


@pytest.mark.parametrize("etag", ["", 'W/"1"', "unquoted", '""'])
def test_weak_validator_is_none(origin: Server, etag: str) -> None:
    remote = origin_at(origin.serve("/base.iso", Resource(BODY, etag=etag)))
    pin = remote.find_version()
    assert pin == Pin(None, len(BODY))
    assert fetch(remote, pin, 0, 10) == BODY[:10]


def test_origin_without_ranges_is_refused(origin: Server) -> None:
    remote = origin_at(origin.serve("/base.iso", Reply(BODY, headers={"ETag": '"1"'})))
    with pytest.raises(BaseImageError, match="does not serve ranges"):
        remote.find_version()


def test_change_at_the_origin_is_noticed(origin: Server) -> None:
    resource = Resource(BODY)
    remote = origin_at(origin.serve("/base.iso", resource))
    pin = remote.find_version()
    resource.etag = '"2"'
    with pytest.raises(OriginChanged, match="status 412"):
        fetch(remote, pin, 0, 10)


@pytest.mark.parametrize(("name", "fault"), FAULTS.items(), ids=list(FAULTS))
def test_faulty_answer_is_refused(origin: Server, name: str, fault: Fault) -> None:
    resource = FaultyResource(Resource(BODY))
    origin.serve(EXPIRED_PATH, Reply(status=403))
    stall_seconds = 0.3 if fault is drip else STALL_SECONDS
    remote = origin_at(origin.serve("/base.iso", resource), stall_seconds=stall_seconds)
    pin = remote.find_version()
    resource.fault = fault
    with pytest.raises(OriginFailed) as refusal:
        fetch(remote, pin, 7, LENGTH)
    assert isinstance(refusal.value, OriginChanged) == (name in CHANGES), refusal.value
    resource.fault = None
    assert fetch(remote, pin, 7, LENGTH) == BODY[7 : 7 + LENGTH]


def test_fault_is_tried_again_and_logged(origin: Server) -> None:
    resource = FaultyResource(Resource(BODY), answer_whole)
    remote = origin_at(origin.serve("/base.iso", resource))
    source = PinnedSource(remote, Pin('"1"', len(BODY)), "base.iso", lambda: None)
    with pytest.raises(OriginFailed, match="status 200"):
        source.fetch(0, memoryview(bytearray(10)))
    assert resource.spoilt == ATTEMPTS


def test_retry_after_of_an_origin_is_kept(origin: Server) -> None:
    busy = Reply(b"", 503, {"Retry-After": "7"})
    remote = origin_at(origin.serve("/base.iso", busy))
    source = PinnedSource(remote, Pin('"1"', len(BODY)), "base.iso", lambda: None)
    for _ in range(3):
        with pytest.raises(OriginFailed) as refusal:
            source.fetch(0, memoryview(bytearray(10)))
        assert 1 <= refusal.value.retry_after_seconds <= 7
    assert len(origin.requests) == 1


def test_head_that_drips_is_given_up(origin: Server) -> None:
    url = origin.serve("/base.iso", Reply(BODY, 206, hold_head=True))
    remote = origin_at(url, stall_seconds=0.2)
    with pytest.raises(OriginFailed, match="stalled"):
        remote.find_version()


class _KeepsConnections(BaseHTTPRequestHandler):
    """Answers a request for the first of ten bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response_only(206)
        for name, value in {"Content-Length": "1", "Content-Range": "bytes 0-0/10"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"1")


def test_connection_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[int] = []

    def record_and_open(host: str, port: int, *arguments: Any) -> socket.socket:
        connected.append(port)
        return connection.open_tcp(host, port, *arguments)

    monkeypatch.setattr(http_client, "open_tcp", record_and_open)
    with ThreadingHTTPServer(("127.0.0.1", 0), _KeepsConnections) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            remote = origin_at(f"http://127.0.0.1:{server.server_port}/base.iso")
            for _ in range(3):
                remote.find_version()
            assert len(connected) == 1
            monkeypatch.setattr(http_client, "MAX_IDLE_SECONDS", 0.0)
            remote.find_version()
            assert len(connected) == 2
        finally:
            _clients.pop().close()
            server.shutdown()


def test_redirect_is_resolved_once_and_again_when_it_has_expired(origin: Server) -> None:
    resource = Resource(BODY)
    first, second = (Reply(status=302, headers={"Location": f"/link{number}?sig=1"}) for number in (1, 2))
    remote = origin_at(origin.serve("/base.iso", first, second))
    origin.serve("/link1", resource, resource, Reply(status=403))
    origin.serve("/link2", resource)
    pin = remote.find_version()
    assert fetch(remote, pin, 5, 10) == BODY[5:15]
    assert fetch(remote, pin, 15, 10) == BODY[15:25]
    assert [request.target for request in origin.requests] == [
        *("/base.iso", "/link1?sig=1", "/link1?sig=1", "/link1?sig=1", "/base.iso", "/link2?sig=1"),
    ]


def test_redirect_to_what_fails_is_resolved_again(origin: Server) -> None:
    with running() as mirror:
        resource = Resource(BODY)
        first = mirror.serve("/base.iso", resource, Reply(status=404), resource)
        targets = (first, first, "/second")
        redirects = (Reply(status=302, headers={"Location": target}) for target in targets)
        remote = origin_at(origin.serve("/base.iso", *redirects))
        origin.serve("/second", Resource(BODY))
        pin = remote.find_version()
        with pytest.raises(OriginFailed, match="404"):
            fetch(remote, pin, 0, 10)
        assert fetch(remote, pin, 0, 10) == BODY[:10]
    with pytest.raises(OriginFailed):
        fetch(remote, pin, 0, 10)
    assert fetch(remote, pin, 0, 10) == BODY[:10]
    assert origin.requests[-1].target == "/second"


def test_credentials_stay_at_their_origin(origin: Server, other: Server) -> None:
    target = other.serve("/base.iso", Resource(BODY))
    moved = Reply(status=307, headers={"Location": f"{target}?token={SECRET}&part=1"})
    url = origin.serve("/base.iso", moved)
    remote = origin_at(url, url)
    fetch(remote, remote.find_version(), 0, 10)
    assert origin.requests[0].target == f"/base.iso?token={SECRET}"
    assert origin.requests[0].headers["X-Key"] == SECRET
    assert {request.target for request in other.requests} == {"/base.iso?part=1"}
    assert SECRET not in "".join(str(request.headers) for request in other.requests)


def test_origin_that_is_not_configured_gets_no_credentials(origin: Server) -> None:
    remote = origin_at(origin.serve("/base.iso", Resource(BODY)))
    remote.find_version()
    assert origin.requests[0].target == "/base.iso"
    assert "X-Key" not in origin.requests[0].headers


def test_redirects_end(origin: Server) -> None:
    remote = origin_at(origin.serve("/base.iso", Reply(status=302, headers={"Location": "/base.iso"})))
    with pytest.raises(OriginFailed, match="more than 10 redirects"):
        remote.find_version()


def test_proxy_gets_the_whole_url(origin: Server) -> None:
    origin.serve("http://origin.test/base.iso", Resource(BODY))
    remote = origin_at(
        "http://origin.test/base.iso", environ={"HTTP_PROXY": f"http://user:pass@127.0.0.1:{origin.port}"}
    )
    assert fetch(remote, remote.find_version(), 3, 10) == BODY[3:13]
    assert origin.requests[0].headers["Proxy-Authorization"].startswith("Basic ")
    assert origin.requests[0].headers["Host"] == "origin.test"


def test_urls_of_s3_are_signed_for_each_request(origin: Server) -> None:
    settings = S3Options(
        access_key_id="AKIATEST", secret_access_key=SECRET, endpoint_url=origin.url(""), region="us-east-1"
    )
    origin.serve("/bucket/a/base.iso", Resource(BODY))
    remote = origin_at("s3://bucket/a/base.iso", s3=settings)
    assert fetch(remote, remote.find_version(), 3, 10) == BODY[3:13]
    assert all("X-Amz-Signature=" in request.target for request in origin.requests)
    assert SECRET not in "".join(request.target for request in origin.requests)


def test_redirect_of_s3_is_not_followed(origin: Server, other: Server) -> None:
    settings = S3Options(access_key_id="AKIATEST", secret_access_key=SECRET, endpoint_url=origin.url(""))
    origin.serve("/bucket/base.iso", Reply(status=307, headers={"Location": other.url("/base.iso")}))
    with pytest.raises(OriginFailed, match="status 307"):
        origin_at("s3://bucket/base.iso", s3=settings).find_version()
    assert other.requests == []


def test_no_credentials_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(OriginFailed, match="cannot be signed for S3: no credentials; "):
        origin_at("s3://bucket/base.iso").find_version()


def test_small_files_are_read_whole(origin: Server) -> None:
    remote = origin_at(origin.serve("/digests", Reply(b"content")))
    assert remote.read_all(7) == b"content"
    with pytest.raises(BaseImageError, match="more than 6 bytes"):
        remote.read_all(6)
