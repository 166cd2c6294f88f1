from __future__ import annotations

import json
import ssl
import threading
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trustme

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.origins import origin_of
from image_service.common.http.redirects import MAX_REDIRECTS
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.settings import Settings
from tests.ports import ANY_ADDRESS
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


BODY = bytes(range(256)) * 4096
SECRET = "top-secret"
SLOWLY: dict[str, Any] = {"drip": 1, "drip_seconds": 0.01}  # a tenth of the rate that is a stall
IMAGE = {"openshift_version": "4.20", "cpu_architecture": "x86_64", "version": "1"}


@pytest.fixture
def other() -> Iterator[Origin]:
    """Serve from another port, which makes another origin."""
    with running() as server:
        yield server


@attrs.frozen
class Authority:
    """A certificate authority: its file, and a server's context with a certificate of it."""

    ca_file: Path
    context: ssl.SSLContext


def authority(directory: Path) -> Authority:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1", ANY_ADDRESS).configure_cert(context)
    return Authority(directory / "ca.pem", context)


def client(**environ: str) -> OriginClient:
    settings = Settings.from_environment({"DATA_DIR": "/tmp", **environ}, standalone=True)
    return OriginClient.from_settings(settings.download, settings.source_urls, settings.proxies)


def read(made: OriginClient, url: str, interruption: Interruption | None = None) -> bytes:
    with made.fetch(url, {}, interruption or Interruption()) as response:
        return b"".join(response.blocks())


def fetch(url: str, interruption: Interruption | None = None, /, **environ: str) -> bytes:
    """Fetch a URL whose origin gets the credentials."""
    made = attrs.evolve(client(**environ), credential_origins=frozenset({origin_of(url)}))
    return read(made, url, interruption)


def test_whole_body_is_fetched(origin: Origin) -> None:
    assert fetch(origin.serve("/a.iso", Reply(BODY))) == BODY
    assert origin.requests[0].headers["User-Agent"] == "image-service"


def test_body_may_end_with_the_connection(origin: Origin) -> None:
    assert fetch(origin.serve("/a.iso", Reply(BODY, promised=-1))) == BODY


def test_body_may_be_chunked(origin: Origin) -> None:
    chunked = Reply(b"3\r\nabc\r\n0\r\n\r\n", promised=-1, headers={"Transfer-Encoding": "chunked"})
    assert fetch(origin.serve("/a.iso", chunked)) == b"abc"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(BODY[:-1], promised=len(BODY)), f"sent {len(BODY) - 1} of {len(BODY)} bytes"),
        (
            Reply(b"3\r\nabc\r\n", promised=-1, headers={"Transfer-Encoding": "chunked"}),
            "the connection ended within the body",
        ),
        (Reply(status=204), "answered with status 204"),
        (Reply(BODY, headers={"Content-Encoding": "gzip"}), "content coding 'gzip'"),
        (Reply(status=404), "answered with status 404"),
        (Reply(status=302, headers={"Location": "ftp://127.0.0.1/a.iso"}), "redirects from http to ftp"),
        (
            Reply(status=302, headers={"Location": "file:///etc/passwd"}),
            "redirects from http to file, to file:///etc/passwd",
        ),
        (Reply(status=302), "answered with status 302, without an HTTP URL to follow"),
        (Reply(status=302, headers={"Location": "?loop"}), "more than 10 redirects, the last one from "),
        (Reply(status=302, headers={"Location": "http://h:port/"}), "redirects to an invalid URL"),
        (Reply(status=302, headers={"Location": "http://[::1/"}), "redirects to an invalid URL"),
        (Reply(status=300, headers={"Location": "/b.iso"}), "answered with status 300"),
    ],
)
def test_failure_names_the_reason_and_the_url_without_query(
    origin: Origin, reply: Reply, reason: str
) -> None:
    url = origin.serve("/a.iso", reply)
    with pytest.raises(Unavailable, match=f"^cannot fetch {url}: .*{reason}") as refusal:
        fetch(f"{url}?signature={SECRET}")
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("host", ["images..example", f"{'a' * 64}.example", ".".join(["a" * 63] * 4)])
def test_redirect_to_what_is_not_a_host_name_is_told(origin: Origin, host: str) -> None:
    url = origin.serve("/a.iso", Reply(status=302, headers={"Location": f"//{host}/b.iso"}))
    with pytest.raises(Unavailable) as refusal:
        fetch(url)
    reason = "its name does not resolve: it is not a host name"
    assert str(refusal.value) == f"cannot fetch {url}, redirected to http://{host}/b.iso: {reason}"


def test_refused_connection_is_unavailable(other: Origin) -> None:
    url = other.url("/a.iso")
    other.close()
    with pytest.raises(Unavailable, match="refused"):
        fetch(url)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(BODY[:9], promised=9000, hold=True),
        Reply(BODY[:9], promised=-1, hold=True),
        Reply(b"5\r\nab", promised=-1, headers={"Transfer-Encoding": "chunked"}, hold=True),
        Reply(b"5;" + b"a" * 60_000, promised=-1, headers={"Transfer-Encoding": "chunked"}, **SLOWLY),
        Reply(BODY, **SLOWLY),
    ],
    ids=["with length", "without", "within a chunk", "dripping chunk head", "dripping body"],
)
def test_stalled_body_is_aborted(origin: Origin, reply: Reply) -> None:
    with pytest.raises(Unavailable, match=r"stalled: less than 1024 bytes per second for 0\.05 s"):
        fetch(origin.serve("/a.iso", reply), DOWNLOAD_STALL_TIMEOUT="0.05")


def test_stalled_head_is_aborted(origin: Origin) -> None:
    url = origin.serve("/a.iso", Reply(BODY, hold_head=True))
    with pytest.raises(Unavailable, match="stalled"):
        fetch(url, DOWNLOAD_STALL_TIMEOUT="0.05")


@pytest.mark.parametrize(("value", "seconds"), [("7", 7), ("soon", None)])
def test_retry_after_of_the_origin_is_kept(origin: Origin, value: str, seconds: int | None) -> None:
    url = origin.serve("/a.iso", Reply(status=429, headers={"Retry-After": value}))
    with pytest.raises(Unavailable, match="answered with status 429") as refusal:
        fetch(url)
    assert refusal.value.retry_after_seconds == seconds


def test_redirect_loop_is_told_with_its_urls(origin: Origin) -> None:
    origin.serve("/b.iso", Reply(status=301, headers={"Location": f"/a.iso?key={SECRET}"}))
    url = origin.serve("/a.iso", Reply(status=301, headers={"Location": f"/b.iso?key={SECRET}"}))
    with pytest.raises(Unavailable) as refusal:
        fetch(url)
    loop = f"more than {MAX_REDIRECTS} redirects, the last one from {url} to {origin.url('/b.iso')}"
    assert refusal.value.detail == f"cannot fetch {url}: {loop}"
    assert len(origin.requests) == MAX_REDIRECTS + 1


def test_failure_behind_a_redirect_names_both_urls(origin: Origin, other: Origin) -> None:
    url = origin.serve("/a.iso", Reply(status=302, headers={"Location": other.url(f"/b.iso?key={SECRET}")}))
    with pytest.raises(Unavailable) as refusal:
        fetch(url)
    assert refusal.value.detail == (
        f"cannot fetch {url}, redirected to {other.url('/b.iso')}: answered with status 404"
    )


def test_name_that_does_not_resolve_is_told() -> None:
    with pytest.raises(Unavailable, match=r"^cannot fetch http://mirror\.invalid/a\.iso: its name does not"):
        fetch("http://mirror.invalid/a.iso")


def test_https_url_of_a_plain_port_is_told(origin: Origin) -> None:
    with pytest.raises(Unavailable, match="TLS failed: the port may not speak HTTPS"):
        fetch(f"https://127.0.0.1:{origin.port}/a.iso")


def test_failing_proxy_is_named_without_its_password(other: Origin) -> None:
    other.close()
    with pytest.raises(Unavailable) as refusal:
        fetch("http://mirror.invalid/a.iso", http_proxy=f"http://user:{SECRET}@127.0.0.1:{other.port}")
    assert refusal.value.detail == (
        f"cannot fetch http://mirror.invalid/a.iso, through the proxy 127.0.0.1:{other.port}: "
        "Connection refused"
    )


def test_interruption_between_blocks_raises(origin: Origin) -> None:
    interruption = Interruption()
    url = origin.serve("/a.iso", Reply(BODY))
    with client().fetch(url, {}, interruption) as response:
        blocks = response.blocks()
        next(blocks)
        interruption.interrupt()
        with pytest.raises(Interrupted):
            next(blocks)


def test_interruption_before_the_fetch_sends_no_request(origin: Origin) -> None:
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(Interrupted):
        fetch(origin.serve("/a", Reply(BODY)), interruption)
    assert not origin.requests


# Credentials.

CREDENTIALS = {
    "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": f"Bearer {SECRET}", "X-Token": SECRET}),
    "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": f"{SECRET}/&", "more": "1"}),
}
QUERY = f"key={SECRET}%2F%26&more=1"


@pytest.mark.parametrize(("query", "sent"), [("", f"?{QUERY}"), ("?a=b", f"?a=b&{QUERY}")])
def test_credentials_are_sent_to_the_configured_origin(origin: Origin, query: str, sent: str) -> None:
    fetch(origin.serve("/a.iso", Reply(BODY)) + query, **CREDENTIALS)

    assert origin.requests[0].target == f"/a.iso{sent}"
    assert origin.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert origin.requests[0].headers["X-Token"] == SECRET


def test_redirect_within_the_origin_keeps_the_credentials(origin: Origin) -> None:
    origin.serve("/b.iso", Reply(BODY))
    url = origin.serve("/a.iso", Reply(b"moved", status=307, headers={"Location": "/b.iso"}))

    assert fetch(url, **CREDENTIALS) == BODY
    assert origin.requests[1].target == "/b.iso"
    assert origin.requests[1].headers["X-Token"] == SECRET


def test_redirect_to_another_origin_drops_the_credentials(origin: Origin, other: Origin) -> None:
    other.serve("/b.iso", Reply(status=302, headers={"Location": "/c.iso"}))
    other.serve("/c.iso", Reply(BODY))
    location = f"{other.url('/b.iso')}?signed=yes&{QUERY}"
    url = origin.serve("/a.iso", Reply(status=302, headers={"Location": location}))

    assert fetch(url, **CREDENTIALS) == BODY
    assert [request.target for request in other.requests] == ["/b.iso?signed=yes", "/c.iso"]
    assert SECRET not in "".join(str(request.headers) for request in other.requests)


@pytest.mark.parametrize(
    "query", ["Credential=A%2F2021%2Fs3&Signature=a%2Bb%3D%3d", "path=/a/b+c%20d&sig=a=b=", "?"]
)
def test_signature_in_a_redirect_is_sent_as_it_was_received(origin: Origin, query: str) -> None:
    origin.serve("/b%2Fc.iso", Reply(BODY))
    url = origin.serve("/a.iso", Reply(status=302, headers={"Location": f"/b%2Fc.iso?{query}"}))

    assert fetch(url) == BODY
    assert origin.requests[1].target == f"/b%2Fc.iso?{query}"


def test_redirect_back_to_the_origin_sends_the_credentials_again(origin: Origin, other: Origin) -> None:
    other.serve("/b.iso", Reply(status=302, headers={"Location": origin.serve("/c.iso", Reply(BODY))}))
    url = origin.serve("/a.iso", Reply(status=302, headers={"Location": other.url("/b.iso")}))

    assert fetch(url, **CREDENTIALS) == BODY
    assert origin.requests[1].headers["X-Token"] == SECRET


@pytest.mark.parametrize("variable", ["OS_IMAGES", "COREOS_STREAMS"])
def test_credentials_go_to_origins_of_configured_urls_only(
    variable: str, origin: Origin, other: Origin
) -> None:
    configured = {
        "OS_IMAGES": {**IMAGE, "url": origin.url("/x.iso")},
        "COREOS_STREAMS": {"stream": "a", "url": origin.url("/x.json"), "architectures": ["x86_64"]},
    }
    made = client(**{variable: json.dumps([configured[variable]])}, **CREDENTIALS)
    for server in (origin, other):
        read(made, server.serve("/a", Reply(BODY)))
    assert origin.requests[0].target == f"/a?{QUERY}"
    assert origin.requests[0].headers["X-Token"] == SECRET
    assert other.requests[0].target == "/a"
    assert "X-Token" not in other.requests[0].headers


def test_another_port_or_scheme_is_another_origin(origin: Origin) -> None:
    for url in (f"https://127.0.0.1:{origin.port}/x.iso", "http://127.0.0.1/x.iso", "file:///x.iso"):
        read(
            client(OS_IMAGES=json.dumps([{**IMAGE, "url": url}]), **CREDENTIALS),
            origin.serve("/a", Reply(b"")),
        )
        assert origin.requests[-1].target == "/a"
        assert "X-Token" not in origin.requests[-1].headers


def test_an_unconfigured_origin_that_redirects_to_a_configured_one_gets_no_credentials(
    origin: Origin, other: Origin
) -> None:
    made = client(OS_IMAGES=json.dumps([{**IMAGE, "url": origin.url("/x.iso")}]), **CREDENTIALS)
    location = {"Location": origin.serve("/a", Reply(BODY))}
    read(made, other.serve("/b", Reply(status=302, headers=location)))
    assert "X-Token" not in origin.requests[0].headers


# TLS.


def test_ca_file_adds_to_the_authorities_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, own = (authority(tmp_path / name) for name in _made(tmp_path, "system", "own"))
    monkeypatch.setenv("SSL_CERT_FILE", str(system.ca_file))
    with running(system.context) as public, running(own.context) as private:
        for origin in (public, private):
            url = origin.serve("/a.iso", Reply(BODY))
            assert fetch(url, OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=str(own.ca_file)) == BODY


def test_changed_ca_file_is_used_by_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.common.files.reloaded.CHECK_SECONDS", 0)
    first, second = (authority(tmp_path / name) for name in _made(tmp_path, "first", "second"))
    made = client(OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=str(first.ca_file))
    with running(second.context) as origin:
        url = origin.serve("/a.iso", Reply(BODY))

        with pytest.raises(Unavailable, match="certificate: "):
            read(made, url)
        second.ca_file.rename(first.ca_file)
        assert read(made, url) == BODY
        first.ca_file.write_bytes(b"no certificate")
        assert read(made, url) == BODY


def test_unknown_authority_is_refused_unless_verification_is_off(tmp_path: Path) -> None:
    with running(authority(tmp_path).context) as origin:
        url = origin.serve("/a.iso", Reply(BODY))
        with pytest.raises(Unavailable, match="certificate: "):
            fetch(url)
        assert fetch(url, INSECURE_SKIP_VERIFY="true") == BODY


def test_redirect_from_https_to_http_is_refused(tmp_path: Path, origin: Origin) -> None:
    trusted = authority(tmp_path)
    with running(trusted.context) as secure:
        location = {"Location": origin.serve("/b.iso", Reply(BODY))}
        url = secure.serve("/a.iso", Reply(status=302, headers=location))
        with pytest.raises(Unavailable, match=f"redirects from https to http, to {origin.url('/b.iso')}$"):
            fetch(url, OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=str(trusted.ca_file))
    assert not origin.requests


def test_redirect_from_http_to_https_is_followed(tmp_path: Path, origin: Origin) -> None:
    trusted = authority(tmp_path)
    with running(trusted.context) as secure:
        location = {"Location": secure.serve("/b.iso", Reply(BODY))}
        url = origin.serve("/a.iso", Reply(status=302, headers=location))
        assert fetch(url, OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=str(trusted.ca_file)) == BODY


def test_interruption_ends_a_read_from_a_silent_tls_server(tmp_path: Path) -> None:
    trusted, interruption = authority(tmp_path), Interruption()
    with running(trusted.context) as origin:
        url = origin.serve("/a.iso", Reply(BODY[:9], promised=9000, hold=True))

        def interrupt() -> None:
            origin.holding.wait()
            interruption.interrupt()

        waiter = threading.Thread(target=interrupt)
        waiter.start()
        with pytest.raises(Interrupted):
            fetch(url, interruption, OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=str(trusted.ca_file))
        waiter.join()
        assert not origin.released.is_set()


# Proxies.


def by_proxy(origin: Origin, path: str) -> str:
    return origin.url(path).replace("127.0.0.1", ANY_ADDRESS)


def test_proxy_of_the_environment_is_used(origin: Origin, other: Origin) -> None:
    url = by_proxy(origin, "/a.iso")
    other.serve(url, Reply(BODY))
    assert fetch(url, HTTP_PROXY=f"http://user:{SECRET}@127.0.0.1:{other.port}") == BODY
    (request,) = other.requests
    assert (
        b64decode(request.headers["Proxy-Authorization"].removeprefix("Basic ")) == b"user:" + SECRET.encode()
    )
    assert not origin.requests


def test_loopback_is_reached_without_a_proxy(origin: Origin, other: Origin) -> None:
    url = origin.serve("/a.iso", Reply(BODY))
    assert fetch(url, HTTP_PROXY=f"http://127.0.0.1:{other.port}") == BODY
    assert not other.requests


def test_proxies_of_the_process_are_not_read(
    origin: Origin, other: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other.port}")
    origin.serve("/a.iso", Reply(BODY))
    assert fetch(by_proxy(origin, "/a.iso")) == BODY
    assert not other.requests


def test_proxy_password_is_not_sent_to_an_exempt_origin(origin: Origin, other: Origin) -> None:
    origin.serve("/b.iso", Reply(BODY))
    location = {"Location": by_proxy(origin, "/b.iso")}
    other.serve("http://mirror.invalid/a.iso", Reply(status=302, headers=location))
    proxy = f"http://user:{SECRET}@127.0.0.1:{other.port}"
    url, exempt = "http://mirror.invalid/a.iso", f"{ANY_ADDRESS}:{origin.port}"
    assert fetch(url, HTTP_PROXY=proxy, NO_PROXY=exempt) == BODY
    assert "Proxy-Authorization" not in origin.requests[0].headers


@pytest.mark.parametrize(
    ("exempt", "is_proxied"), [("0.0.0.0/8", False), ("*", False), ("10.0.0.0/8,::/0,example.com", True)]
)
def test_no_proxy_is_read(origin: Origin, other: Origin, exempt: str, *, is_proxied: bool) -> None:
    origin.serve("/a.iso", Reply(BODY))
    url = by_proxy(origin, "/a.iso")
    other.serve(url, Reply(BODY))
    assert fetch(url, HTTP_PROXY=f"http://127.0.0.1:{other.port}", NO_PROXY=exempt) == BODY
    assert (len(other.requests), len(origin.requests)) == ((1, 0) if is_proxied else (0, 1))


def test_tls_is_tunneled_through_the_proxy(other: Origin, tmp_path: Path) -> None:
    trusted = authority(tmp_path)
    proxy = f"http://user:{SECRET}@127.0.0.1:{other.port}"
    with running(trusted.context) as origin:
        origin.serve("/a.iso", Reply(BODY))
        url, ca_file = by_proxy(origin, "/a.iso"), str(trusted.ca_file)
        assert fetch(url, OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE=ca_file, HTTPS_PROXY=proxy) == BODY
        assert "Proxy-Authorization" not in origin.requests[0].headers
    (request,) = other.requests
    assert request.target == f"{ANY_ADDRESS}:{origin.port}"
    assert "Proxy-Authorization" in request.headers


def test_credentials_of_an_origin_are_not_sent_to_the_proxy(other: Origin, tmp_path: Path) -> None:
    trusted = authority(tmp_path)
    proxy = f"http://127.0.0.1:{other.port}"
    with running(trusted.context) as origin:
        origin.serve("/a.iso", Reply(BODY))
        environ = {
            **CREDENTIALS,
            "HTTPS_PROXY": proxy,
            "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE": str(trusted.ca_file),
        }
        assert fetch(by_proxy(origin, "/a.iso"), **environ) == BODY
        assert origin.requests[0].headers["X-Token"] == SECRET
    assert other.requests[0].target == f"{ANY_ADDRESS}:{origin.port}"
    assert SECRET not in str(other.requests[0].headers)


def _made(directory: Path, *names: str) -> Iterator[str]:
    for name in names:
        (directory / name).mkdir()
        yield name
