"""Proxies that are reached by TLS: the client does through them what curl does."""

from __future__ import annotations

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError, TooSlow, UntrustedCertificate
from image_service.common.http.origins import Proxy
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.common.objects.s3_client import BucketLocation, S3Client, S3Options
from image_service.settings.proxies import ProxySettings
from tests.acceptance.clients import run_client
from tests.chains import Chain, write_chain
from tests.connect_proxy import ConnectProxy, running_proxy
from tests.ports import free_port
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODY = bytes(range(256)) * 10_000
HOST = "localhost.localdomain"  # of this machine, but not exempt from proxies


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return write_chain("without key identifiers", tmp_path)


@contextmanager
def serving(chain: Chain, scheme: str) -> Iterator[Origin]:
    context = None
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain.certificate)
    with running(context) as origin:
        yield origin


def client_of(chain: Chain, proxy: ConnectProxy, **options: object) -> HttpClient:
    context = client_context(chain.ca_file)
    url = f"https://us%3Aer:s3cret@localhost:{proxy.port}"
    found = ProxySettings.from_environment({"HTTP_PROXY": url, "HTTPS_PROXY": url}).find("https://x.example")
    limits = RequestLimits(stall_seconds=20)
    return HttpClient(lambda: context, limits, find_proxy=lambda _: found, **options)  # type: ignore[arg-type]


def get(client: HttpClient, url: str) -> bytes:
    with client.send("GET", url, {}) as response:
        return b"".join(response.blocks())


def curl(chain: Chain, proxy: ConnectProxy, url: str) -> bytes:
    words = ["-sS", "--proxy", f"https://localhost:{proxy.port}", "--proxy-user", "us:er:s3cret"]
    trust = ["--proxy-cacert", str(chain.ca_file), "--cacert", str(chain.ca_file), "--noproxy", ""]
    return run_client("curl", *words, *trust, url)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("chunked", [False, True])
def test_resource_is_fetched_as_curl_fetches_it(chain: Chain, scheme: str, *, chunked: bool) -> None:
    whole = Reply(BODY)
    if chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
        whole = Reply(framed, promised=-1, headers={"Transfer-Encoding": "chunked"})
    with running_proxy(chain.certificate) as proxy, serving(chain, scheme) as origin:
        url = origin.serve("/a.iso", whole)
        client = client_of(chain, proxy, max_idle=1)
        fetched = [get(client, url) for _ in range(2)]
        client.close()
        assert curl(chain, proxy, url) == BODY
        assert fetched == [BODY, BODY]
    ours, theirs = proxy.lines[0], proxy.lines[-1]
    assert ours.startswith("CONNECT " if scheme == "https" else f"GET {url} ")
    assert ours.endswith("Proxy-Authorization: Basic dXM6ZXI6czNjcmV0")
    assert ours.split(" ")[:2] == theirs.split(" ")[:2]


def test_range_is_read_into_memory(chain: Chain) -> None:
    with running_proxy(chain.certificate) as proxy, serving(chain, "https") as origin:
        url = origin.serve("/a.iso", Reply(BODY))
        target = memoryview(bytearray(len(BODY)))
        with client_of(chain, proxy).send("GET", url, {}) as response:
            response.read_into(target)
            assert response.is_at_end()
    assert target == BODY


def test_upload_is_sent(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BODY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain.certificate)

    def take(listener: socket.socket) -> bytes:
        listener.settimeout(60)  # where the client fails, nobody connects
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as server:
            received = b""
            while not received.endswith(BODY):
                received += server.recv(65536)
            server.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        return received

    with (
        running_proxy(chain.certificate) as proxy,
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor() as threads,
        (tmp_path / "body").open("rb") as body,
    ):
        taken = threads.submit(take, listener)
        url = f"https://localhost:{listener.getsockname()[1]}/a"
        with client_of(chain, proxy).send("PUT", url, {"Content-Length": str(len(BODY))}, body) as response:
            assert response.status == 201
        assert taken.result().partition(b"\r\n\r\n")[2] == BODY


def test_cut_body_is_told(chain: Chain) -> None:
    with running_proxy(chain.certificate) as proxy, serving(chain, "https") as origin:
        url = origin.serve("/a.iso", Reply(BODY[:-1], promised=len(BODY)))
        with pytest.raises(HttpError, match=f"sent {len(BODY) - 1} of {len(BODY)} bytes"):
            get(client_of(chain, proxy), url)


def read_held(
    chain: Chain, interruption: Interruption, limits: RequestLimits, on_begin: Callable[[], object]
) -> None:
    """Read a body that stops after nine bytes."""
    with running_proxy(chain.certificate) as proxy, serving(chain, "https") as origin:
        url = origin.serve("/a.iso", Reply(BODY[:9], promised=len(BODY), hold=True))
        client = client_of(chain, proxy)
        try:
            with client.send("GET", url, {}, limits=limits, interruption=interruption) as response:
                assert response.read(9) == BODY[:9]
                on_begin()
                response.read(len(BODY))
        finally:
            origin.released.set()


def test_silent_server_is_told(chain: Chain) -> None:
    limits = RequestLimits(stall_seconds=0.5, slow="silent")
    with pytest.raises(TooSlow, match=r"^silent$"):
        read_held(chain, Interruption(), limits, lambda: None)


def test_interruption_ends_a_wait(chain: Chain) -> None:
    interruption = Interruption()
    begun = threading.Timer(0.1, interruption.interrupt)
    with pytest.raises(Interrupted):
        read_held(chain, interruption, RequestLimits(stall_seconds=60), begun.start)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_certificate_of_the_proxy_is_verified(chain: Chain, scheme: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_chain("without subject", tmp_path / "other")
    with running_proxy(other.certificate) as proxy, serving(chain, scheme) as origin:
        url = origin.serve("/a", Reply(BODY))
        with pytest.raises(UntrustedCertificate, match=r"^the proxy: certificate: ") as caught:
            get(client_of(chain, proxy), url)
        assert caught.value.lacks_authority
        assert origin.requests == []
    assert proxy.lines == []


def test_certificate_of_the_server_is_verified_in_the_tunnel(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_chain("expired", tmp_path / "other")
    with running_proxy(chain.certificate) as proxy, serving(other, "https") as origin:
        with pytest.raises(UntrustedCertificate, match=r"^certificate: "):
            get(client_of(chain, proxy), origin.serve("/a", Reply(BODY)))
        assert origin.requests == []


def test_proxy_without_tls_is_told(chain: Chain) -> None:
    with (
        running() as other,
        pytest.raises(HttpError, match=r"^the proxy: TLS failed: the port may not speak"),
    ):
        get(client_of(chain, ConnectProxy(other.port)), "https://x.example/")


def test_port_behind_the_proxy_without_tls_is_told(chain: Chain) -> None:
    with running_proxy(chain.certificate) as proxy, serving(chain, "http") as origin:
        url = origin.serve("/a", Reply(BODY)).replace("http:", "https:")
        with pytest.raises(HttpError, match=r"^TLS failed: the port may not speak HTTPS$"):
            get(client_of(chain, proxy), url)


def test_tunnel_that_is_refused_is_told(chain: Chain) -> None:
    with running_proxy(chain.certificate) as proxy, pytest.raises(HttpError):
        get(client_of(chain, proxy), f"https://127.0.0.1:{free_port()}/")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_s3_uses_the_proxy(chain: Chain, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CA_BUNDLE": str(chain.ca_file),
        "NO_PROXY": "x.example",
    }.items():
        monkeypatch.setenv(name, value)
    with running_proxy(chain.certificate) as proxy, serving(chain, scheme) as origin:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"https://localhost:{proxy.port}")
        origin.serve("/bucket/key", Reply(b"body", status=206))
        client = S3Client(S3Options(endpoint_url=origin.url(""), attempts=1, answer_seconds=9))
        assert client.read_at(BucketLocation("bucket", "key"), 0, 4) == b"body"
        client.close()
    assert len(proxy.lines) == 1


def test_proxy_is_named_with_its_scheme() -> None:
    assert str(Proxy("::1", 443, is_tls=True)) == "https://[::1]:443"
