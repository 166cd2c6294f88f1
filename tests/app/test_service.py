"""The whole service on a real reactor: a mistake in the wiring shows here."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest
import trustme
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import formatEvent, globalLogPublisher

from image_service.app.service import ImageService
from image_service.server.snapshots.image_finder import CACHES
from image_service.server.standalone.sample import SAMPLE_VERSION, unpack_sample
from image_service.server.standalone.service import SAMPLE_ID
from image_service.server.transport.sending.tcp import bind
from image_service.settings import network
from image_service.settings.settings import Settings
from tests.core.families.coreos.streams import stream
from tests.ports import free_port
from tests.pytwisted import ensure_deferred
from tests.server.catalog import origin
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
    from twisted.logger import LogEvent


@attrs.define
class LoggedUrl:
    """Waits for the log line that begins with some words, for its URL."""

    beginning: str
    found: Deferred[str] = attrs.field(factory=Deferred)

    def __call__(self, event: LogEvent) -> None:
        if (event["log_format"] or "").startswith(self.beginning):
            self.found.callback(event["url"])


def settings_of(data_dir: Path, **environ: str) -> Settings:
    defaults = {"DATA_DIR": str(data_dir), "STANDALONE_LISTEN": "127.0.0.1:0", "DRAIN_DELAY": "0"}
    return Settings.from_environment({**defaults, **environ}, standalone=True)


@asynccontextmanager
async def running(
    reactor: EPollReactor, settings: Settings, sockets: Sequence[socket.socket], beginning: str = "try it"
) -> AsyncIterator[str]:
    """Start the service; yields the URL of a log line, by default that of the sample, which is ready then."""
    logged = LoggedUrl(beginning)
    globalLogPublisher.addObserver(logged)  # type: ignore[arg-type]  # a function is an observer too
    service = ImageService(reactor, settings, standalone=True, sockets=sockets)
    service.startService()
    try:
        yield await logged.found.addTimeout(60, reactor)
    finally:
        globalLogPublisher.removeObserver(logged)  # type: ignore[arg-type]  # same
        await service.stopService()


@ensure_deferred
async def test_start_ends_with_the_status_page(reactor: EPollReactor, tmp_path: Path) -> None:
    messages: list[str] = []

    def note(event: LogEvent) -> None:
        messages.append(formatEvent(event))

    globalLogPublisher.addObserver(note)  # type: ignore[arg-type]  # a function is an observer too
    page = f"http://127.0.0.1:{free_port()}/"
    settings = settings_of(tmp_path, ADMIN_LISTEN=urlsplit(page).netloc)
    async with running(reactor, settings, [bind(0)], "status page") as url:
        globalLogPublisher.removeObserver(note)  # type: ignore[arg-type]  # same
        assert url == page
    assert messages[-2].startswith("try it: curl -fo full.iso http")
    assert messages[-1] == f"status page: {page}"


@ensure_deferred
async def test_service_answers_health_metrics_and_images(reactor: EPollReactor, tmp_path: Path) -> None:
    async with running(
        reactor, settings_of(tmp_path, ALLOWED_DOMAINS="https://console.example"), [bind(0)]
    ) as url:
        split = urlsplit(url)
        get = ApiClient(reactor, f"{split.scheme}://{split.netloc}")
        health = await get("GET", "/health")
        assert health.status == 200
        image = await get.get_image(split.path)
        assert image.status == 200
        part = await get("GET", split.path, Range="bytes=2048-4095", Origin="https://console.example")
        assert (part.status, part.body) == (206, image.body[2048:4096])
        assert part.field("Access-Control-Allow-Origin") == "https://console.example"
        digest = await get.get_image(f"{split.path}.sha256")
        assert digest.body.split()[0].decode() == sha256(image.body).hexdigest()
        statuses = await get("GET", "/images")
        assert [entry["state"] for entry in statuses.document["images"]] == ["ready"]
        metrics = (await get("GET", "/metrics")).body.decode()
        for gauge in ("base_images", "connections", "snapshot_held_bytes", "slots_limit"):
            assert gauge in metrics
        assert "assisted_image_service_snapshot_store_limit_bytes 1.073741824e+09" in metrics
        assert 'assisted_image_service_snapshot_store_failing{operation="write"} 0.0' in metrics
        for cache in (*CACHES, "routes"):
            assert f'assisted_image_service_cache_bytes{{cache="{cache}"}} ' in metrics
        assert "assisted_image_service_http_request_duration_seconds" in metrics


@pytest.mark.parametrize(("serves_initrd", "status"), [("true", 200), ("false", 404)])
@ensure_deferred
async def test_service_with_a_certificate_serves_https_and_plain_http(
    reactor: EPollReactor, tmp_path: Path, serves_initrd: str, status: int
) -> None:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {"HTTPS_KEY_FILE": str(tmp_path / "key.pem"), "HTTPS_CERT_FILE": str(tmp_path / "cert.pem")}
    secure, plain = bind(0), bind(0)
    get = ApiClient(reactor, f"http://localhost:{plain.getsockname()[1]}")
    async with running(
        reactor, settings_of(tmp_path / "data", HTTP_SERVES_INITRD=serves_initrd, **files), [secure, plain]
    ) as url:
        assert url.startswith("https://localhost:")
        assert (await get("GET", "/health")).status == 200
        assert (await get("GET", urlsplit(url).path)).status == 404  # ISOs are served by the other one
        initrd = f"/images/{SAMPLE_ID}/pxe-initrd?version={SAMPLE_VERSION}"
        assert (await get.get_image(initrd)).status == status


@ensure_deferred
async def test_address_of_the_default_route_is_in_scripts_and_minimal_isos(
    reactor: EPollReactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the requests name; another address makes another minimal ISO, also of the same infra-env."""
    found = []
    for address in ("198.51.100.7", "198.51.100.8"):
        monkeypatch.setattr(network, "find_default_address", {socket.AF_INET: address}.get)
        settings = settings_of(tmp_path, LISTEN_ADDRESS="0.0.0.0")  # noqa: S104 - the sockets are the test's
        sockets = bind(0), bind(0)
        port, plain_port = (each.getsockname()[1] for each in sockets)
        async with running(reactor, settings, sockets) as url:
            assert url.startswith(f"http://{address}:{port}/byid/")
            for number in (port, plain_port):
                get = ApiClient(reactor, f"http://127.0.0.1:{number}")
                path = f"/images/{SAMPLE_ID}/ipxe?version={SAMPLE_VERSION}"
                script = (await get("GET", path, Host="elsewhere.example")).body.decode()
                assert f"coreos.live.rootfs_url=http://{address}:{number}/boot-artifacts/" in script
                assert "elsewhere" not in script
                assert "127.0.0.1" not in script
            get = ApiClient(reactor, f"http://127.0.0.1:{port}")
            image = await get.get_image(urlsplit(url).path.replace("full.iso", "minimal.iso"))
            assert image.status == 200
            assert f"rootfs_url=http://{address}:{port}/".encode() in image.body
            found.append(image.field("ETag"))
    assert len(set(found)) == 2


@ensure_deferred
async def test_service_downloads_and_publishes_the_release_of_a_stream(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    iso = unpack_sample(tmp_path).read_bytes()
    with origin.running() as server:
        document = stream("44.1.2.3", origin=server.url(""))
        disk = document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]
        disk["sha256"] = sha256(iso).hexdigest()
        server.serve(urlsplit(disk["location"]).path, origin.Resource(iso))
        url = server.serve("/stable.json", origin.Resource(json.dumps(document).encode()))
        source = {"stream": "stable", "url": url, "architectures": ["x86_64"]}
        settings = settings_of(tmp_path / "data", COREOS_STREAMS=json.dumps([source]))
        async with running(reactor, settings, [bind(0)], "serving at") as base_url:
            get = ApiClient(reactor, base_url)
            published = await get("GET", "/streams/stable.json")
            for _ in range(600):
                if published.status == 200:
                    break
                await deferLater(reactor, 0.05)
                published = await get("GET", "/streams/stable.json")
            metal = published.document["architectures"]["x86_64"]["artifacts"]["metal"]
            location = metal["formats"]["iso"]["disk"]["location"]
            assert location.startswith(f"{base_url}/streams/stable/44.1.2.3/x86_64/")
            assert (await get("GET", urlsplit(location).path)).body == iso
            assert (await get("GET", "/health")).status == 200
